// WorkTimes: how long threads computed for one operation, by kind of work.
#pragma once

#include <cstdint>

namespace q7x2 {

/// In nanoseconds. Work of several threads at the same time adds up, so a sum may exceed the wall
/// time.
struct WorkTimes {
  int64_t select = 0;  ///< a codec searched the tensor for the elements to send; before `submitted`
  int64_t encode = 0;  ///< from elements to messages of a codec
  int64_t decode = 0;  ///< from messages of a codec to elements, including additions
  int64_t reduce = 0;  ///< additions of elements
  int64_t copy = 0;    ///< copies of elements or messages, also through shared memory

  WorkTimes& operator+=(const WorkTimes& other) {
    select += other.select;
    encode += other.encode;
    decode += other.decode;
    reduce += other.reduce;
    copy += other.copy;
    return *this;
  }
};

}  // namespace q7x2
