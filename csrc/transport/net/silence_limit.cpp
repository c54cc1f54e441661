#include "transport/net/silence_limit.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr std::chrono::milliseconds kDefaultLimit{2000};
constexpr double kShortest = 0.1;
// Practically for ever, but far from the end of the clock's range.
constexpr double kLongest = 365.0 * 24 * 3600;

}  // namespace

std::chrono::milliseconds silence_limit() {
  const char* const text = std::getenv("Q7X2_SILENCE");
  if (text == nullptr || *text == '\0') {
    return kDefaultLimit;
  }
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (end == text || *end != '\0' || !std::isfinite(seconds) ||
      (seconds != 0 && seconds < kShortest)) {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_SILENCE=" + std::string(text) +
                    ": expected the number of seconds for which a host may not answer, at least "
                    "0.1, or 0 for any time");
  }
  const double limit = seconds == 0 ? kLongest : std::min(seconds, kLongest);
  return std::chrono::milliseconds(std::llround(limit * 1000));
}

}  // namespace q7x2
