// FlightSettings: what the environment asks of the flight recorder.
#pragma once

#include <cstddef>
#include <string>

#include "ledger/flight_recorder.h"

namespace q7x2 {

struct FlightSettings {
  /// Q7X2_FLIGHT_RECORDER: how many operations are remembered; 0: none.
  size_t capacity = FlightRecorder::kDefaultCapacity;
  /// Q7X2_DUMP: the directory that failures are written to; empty: they are not written.
  std::string directory;

  /// Makes the directory, if it is not there. Throws Error(kInvalidArgument), which names the
  /// variable, for a number that is none, and for a directory that cannot be written to.
  static FlightSettings of_environment();
};

}  // namespace q7x2
