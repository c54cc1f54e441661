#include "fabric/doubt.h"

#include <algorithm>
#include <cmath>

namespace q7x2 {
namespace {

constexpr double kSlowestMemory = 100e-6;  // seconds for a message
constexpr double kSlowestCore = 100e6;     // bytes per second
constexpr size_t kQuarter = 4;

bool is_doubtful_pair(const Fabric::Pair& pair) {
  return is_doubtful(pair.alpha_spread) || is_doubtful(pair.rate_spread);
}

}  // namespace

std::string doubt_of(const Fabric& fabric) {
  if (fabric.made.source != "probe") return "";
  std::string text;
  const auto add = [&](const std::string& reason) { text += (text.empty() ? "" : "; ") + reason; };
  const double message = fabric.memory.alpha + 2 * fabric.memory.overhead;
  if (fabric.memory.measured && message > kSlowestMemory) {
    add("a message inside a host took " + std::to_string(std::llround(message * 1e6)) + " us");
  }
  const auto scattered = static_cast<size_t>(std::ranges::count_if(fabric.pairs, is_doubtful_pair));
  if (scattered * kQuarter > fabric.pairs.size()) {
    add("times between hosts varied by more than " +
        std::to_string(std::llround(100 * kDoubtfulSpread)) + " % on " + std::to_string(scattered) +
        " of " + std::to_string(fabric.pairs.size()) + " routes");
  }
  if (fabric.copy_rate > 0 && fabric.copy_rate < kSlowestCore) {
    add("a core copied " + std::to_string(std::llround(fabric.copy_rate / 1e6)) + " MB/s");
  }
  return text;
}

}  // namespace q7x2
