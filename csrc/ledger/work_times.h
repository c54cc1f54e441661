// WorkTimes: how long threads computed for one operation, by what they did.
#pragma once

#include <cstdint>

namespace q7x2 {

/// Nanoseconds. Work of several threads at once adds up, so a sum may exceed the wall time.
struct WorkTimes {
  int64_t select = 0;  ///< a codec looked through the tensor for what to send; before `submitted`
  int64_t encode = 0;  ///< elements to a codec's messages
  int64_t decode = 0;  ///< a codec's messages to elements, added up where a sum is wanted
  int64_t reduce = 0;  ///< elements with elements
  int64_t copy = 0;    ///< elements or messages as they are, also through shared memory

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
