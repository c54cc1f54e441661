#include "ledger/call_signature.h"

#include <gtest/gtest.h>

#include "ledger/flight_recorder.h"

namespace q7x2 {
namespace {

TEST(CallSignature, SaysWhatRanksMustAgreeOn) {
  FlightRecord call;
  call.collective = Collective::kAllReduce;
  call.dtype = DType::kFloat32;
  call.sequence = 12;
  call.input_bytes = call.output_bytes = 4096;
  EXPECT_EQ(call_signature(call), "all_reduce (sequence 12, 4096 bytes of float32, sum)");
  EXPECT_EQ(call_signature(call, "all_reduce_coalesced"),
            "all_reduce_coalesced (sequence 12, 4096 bytes of float32, sum)");
  call.collective = Collective::kBroadcast;
  call.peer = 3;
  EXPECT_EQ(call_signature(call), "broadcast (sequence 12, 4096 bytes of float32, root 3)");
  call.dtype = DType::kBytes;
  EXPECT_EQ(call_signature(call), "broadcast (sequence 12, 4096 bytes, root 3)");
  EXPECT_EQ(call_signature(call, "", ", codec int8"),
            "broadcast (sequence 12, 4096 bytes, root 3, codec int8)");
  call.collective = Collective::kBarrier;
  call.peer = -1;
  EXPECT_EQ(call_signature(call), "barrier (sequence 12)");
}

TEST(FlightRecorder, FindsTheCallOfANumber) {
  FlightRecorder recorder(4);
  const uint32_t group = recorder.open({});
  const auto add = [&](uint32_t of, uint64_t sequence, bool is_internal) {
    FlightRecord& record = recorder.add();
    record.group = of;
    record.sequence = sequence;
    record.is_internal = is_internal;
    record.state = FlightRecord::State::kDone;
  };
  EXPECT_EQ(recorder.find_call(group, 0), nullptr);
  add(group, 5, /*is_internal=*/true);
  add(group, 6, false);
  add(group + 1, 5, false);
  ASSERT_NE(recorder.find_call(group, 6), nullptr);
  EXPECT_EQ(recorder.find_call(group, 6)->sequence, 6U);
  EXPECT_EQ(recorder.find_call(group, 5)->sequence, 6U) << "what number 5 prepared";
  EXPECT_EQ(recorder.find_call(group, 7), nullptr);
  for (uint64_t sequence = 7; sequence < 12; ++sequence) add(group, sequence, false);
  EXPECT_EQ(recorder.find_call(group, 11)->sequence, 11U);
  EXPECT_EQ(recorder.find_call(group, 5), nullptr) << "it has made room for others";
}

}  // namespace
}  // namespace q7x2
