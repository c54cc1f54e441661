// Messages between two lanes: whatever happens to their connections, every message arrives once,
// bit-equal, in the order of its tag.
#include "transport/stream/stream_lane.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>

#include "stream_pair.h"

namespace q7x2::stream_test {
namespace {

TEST(StreamLane, MessagesOfAllLengthsArrive) {
  Pair pair;
  uint64_t tag = 1;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{4096}, size_t{4097}, size_t{65536},
                            size_t{300'000}, size_t{9'000'000}, size_t{20'000'000}}) {
    const Bytes sent = random_bytes(size, tag);
    Bytes got(size);
    const uint64_t send = pair.a.send(sent, tag);
    const uint64_t receive = pair.b.receive(got, tag);
    ASSERT_TRUE(pair.run_until([&] { return pair.a.is_done(send) && pair.b.is_done(receive); }))
        << size;
    EXPECT_EQ(pair.a.outcome(send)->status, StreamStatus::kOk);
    EXPECT_EQ(pair.b.outcome(receive)->status, StreamStatus::kOk);
    EXPECT_EQ(pair.b.outcome(receive)->length, size);
    EXPECT_EQ(pair.b.outcome(receive)->tag, tag);
    EXPECT_TRUE(got == sent) << size;
    ++tag;
  }
  EXPECT_TRUE(pair.run_until([&] { return pair.a.path->is_flushed(); }));
  EXPECT_EQ(pair.a.path->counts().connections_lost, 0);
}

}  // namespace
}  // namespace q7x2::stream_test
