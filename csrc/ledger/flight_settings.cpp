#include "ledger/flight_settings.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/error.h"
#include "base/parse_number.h"
#include "base/private_file.h"

namespace q7x2 {
namespace {

std::string variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

size_t parse_capacity(const std::string& text) {
  const auto capacity = parse_number<size_t>(text);
  if (!capacity || *capacity > FlightRecorder::kMostCapacity) {
    throw Error(ErrorCode::kInvalidArgument, "Q7X2_FLIGHT_RECORDER=" + text +
                                                 ": expected a number of operations from 0 to " +
                                                 std::to_string(FlightRecorder::kMostCapacity));
  }
  return *capacity;
}

void require_writable(const std::string& directory) {
  std::error_code failure;
  try {
    make_private_folder(directory);
  } catch (const std::filesystem::filesystem_error& error) {
    failure = error.code();
  }
  if (!failure && ::access(directory.c_str(), W_OK | X_OK) != 0) {
    failure = {errno, std::generic_category()};
  }
  if (!failure && !std::filesystem::is_directory(directory)) {
    failure = std::make_error_code(std::errc::not_a_directory);
  }
  if (failure) {
    throw Error(ErrorCode::kInvalidArgument,
                "Q7X2_DUMP=" + directory +
                    ": expected a directory that can be written to: " + failure.message());
  }
}

}  // namespace

FlightSettings FlightSettings::of_environment() {
  FlightSettings settings;
  if (const std::string text = variable("Q7X2_FLIGHT_RECORDER"); !text.empty()) {
    settings.capacity = parse_capacity(text);
  }
  settings.directory = variable("Q7X2_DUMP");
  if (!settings.directory.empty()) {
    if (settings.capacity == 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  "Q7X2_DUMP=" + settings.directory +
                      " needs the flight recorder, which Q7X2_FLIGHT_RECORDER=0 turns off");
    }
    require_writable(settings.directory);
  }
  return settings;
}

}  // namespace q7x2
