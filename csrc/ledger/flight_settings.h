// FlightSettings: the environment variables of the flight recorder.
#pragma once

#include <cstddef>
#include <string>

#include "ledger/flight_recorder.h"

namespace q7x2 {

struct FlightSettings {
  /// Q7X2_FLIGHT_RECORDER: number of operations that are remembered; 0: none.
  size_t capacity = FlightRecorder::kDefaultCapacity;
  /// Q7X2_DUMP: the directory to which failures are written; empty: they are not written.
  std::string directory;

  /// Makes the directory, if it does not exist. Throws Error(kInvalidArgument), with the name of
  /// the variable, if a number is invalid or a directory is not writable.
  static FlightSettings of_environment();
};

}  // namespace q7x2
