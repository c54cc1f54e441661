#include "base/log.h"

#include <unistd.h>

#include <cstdlib>
#include <new>
#include <optional>
#include <string>

#include "base/error.h"

namespace q7x2 {
namespace {

constexpr int kOff = -1;

// The highest level that is written; nothing if the setting is invalid.
std::optional<int> highest(std::string_view setting) {
  if (setting == "off") return kOff;
  if (setting.empty() || setting == "warn") return static_cast<int>(Level::kWarn);
  if (setting == "info") return static_cast<int>(Level::kInfo);
  if (setting == "debug") return static_cast<int>(Level::kDebug);
  return std::nullopt;
}

std::string_view setting() {
  const char* const text = std::getenv("Q7X2_LOG");
  return text == nullptr ? "" : text;
}

const char* name_of(Level level) {
  switch (level) {
    case Level::kWarn:
      return "warning";
    case Level::kInfo:
      return "info";
    case Level::kDebug:
      return "debug";
  }
  return "";
}

}  // namespace

void check_log_setting() {
  if (!highest(setting())) {
    throw Error(ErrorCode::kInvalidArgument, "Q7X2_LOG=" + std::string(setting()) +
                                                 ": expected 'off', 'warn', 'info' or 'debug'");
  }
}

bool logs(Level level) {
  // Read once, because a program may change its environment while other threads run.
  static const int upto = highest(setting()).value_or(static_cast<int>(Level::kWarn));
  return static_cast<int>(level) <= upto;
}

void log(Level level, std::string_view text) noexcept {
  if (!logs(level)) {
    return;
  }
  try {
    const std::string line =
        "q7x2: " + std::string(name_of(level)) + ": " + std::string(text) + "\n";
    // One system call, so that lines of several processes do not mix.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  } catch (const std::bad_alloc&) {
    return;  // the line is lost
  }
}

}  // namespace q7x2
