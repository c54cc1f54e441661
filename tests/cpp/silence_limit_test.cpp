// What Q7X2_SILENCE may say.
#include "transport/net/silence_limit.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "silence.h"

namespace q7x2 {
namespace {

using std::chrono::milliseconds;
using test::Silence;

TEST(SilenceLimit, IsTwoSecondsOrWhatTheUserSays) {
  ::unsetenv("Q7X2_SILENCE");
  EXPECT_EQ(silence_limit(), milliseconds(2000));
  const std::vector<std::pair<std::string, milliseconds>> cases{{"0.25", milliseconds(250)},
                                                                {"5", milliseconds(5000)},
                                                                {"", milliseconds(2000)},
                                                                {"1e1", milliseconds(10'000)}};
  for (const auto& [text, limit] : cases) {
    const Silence silence(text.c_str());
    EXPECT_EQ(silence_limit(), limit) << text;
  }
  for (const char* text : {"0", "1e300"}) {
    const Silence silence(text);
    EXPECT_GT(silence_limit(), std::chrono::hours(24 * 300)) << text;
  }
  for (const char* text : {"-1", "0.01", "2s", "two", "nan", "inf", " "}) {
    const Silence silence(text);
    EXPECT_THROW(silence_limit(), Error) << text;
  }
}

}  // namespace
}  // namespace q7x2
