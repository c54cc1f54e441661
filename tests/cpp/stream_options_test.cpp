// What the environment says of streams: each variable has its values, and others are named.
#include "transport/stream/stream_options.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

class StreamOptionsTest : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const char* name : {"Q7X2_CONGESTION", "Q7X2_ENCRYPT", "Q7X2_STREAMS"}) ::unsetenv(name);
  }
};

std::string refused(const char* variable, const char* value) {
  ::setenv(variable, value, 1);
  try {
    StreamOptions::of_environment();
    stream_choice();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "";
}

// Each kernel has reno.
TEST_F(StreamOptionsTest, ACongestionControlThatTheKernelLacksIsNamed) {
  EXPECT_EQ(refused("Q7X2_CONGESTION", "reno"), "");
  EXPECT_EQ(StreamOptions::of_environment().congestion, "reno");
  const std::string said = refused("Q7X2_CONGESTION", "cubicc");
  EXPECT_NE(said.find("Q7X2_CONGESTION=cubicc: expected"), std::string::npos) << said;
  EXPECT_NE(said.find("reno"), std::string::npos) << said;
  EXPECT_NE(refused("Q7X2_CONGESTION", "a name that is far longer than a name may be"), "");
}

TEST_F(StreamOptionsTest, OtherValuesAreNamed) {
  EXPECT_NE(refused("Q7X2_ENCRYPT", "yes").find("Q7X2_ENCRYPT=yes: expected"), std::string::npos);
  ::unsetenv("Q7X2_ENCRYPT");
  EXPECT_NE(refused("Q7X2_STREAMS", "near").find("Q7X2_STREAMS=near: expected"), std::string::npos);
}

}  // namespace
}  // namespace q7x2
