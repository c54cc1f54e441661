// DumpWriter: writes the flight recorder to files of one directory, in a thread of its own.
//
// A dump is requested when a group fails, when a deadline passes, and by SIGUSR2. The thread takes
// the snapshot and writes it. So the requester does not wait, and it works even while Python's lock
// and all threads of the notifier are in use. Requests at the same time share one file. A file
// appears under its name when it is complete: it is written under another name and renamed.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "ledger/flight_recorder.h"

namespace q7x2 {

/// Writes `snapshot` to the file `path`, completely or not at all. Throws Error(kTransport).
void write_dump(const FlightSnapshot& snapshot, const std::string& path);

class DumpWriter {
 public:
  using TakeSnapshot = std::function<FlightSnapshot(std::string reason)>;

  /// `take` is called in the writer's thread, without any lock. Throws Error(kTransport).
  DumpWriter(std::string directory, TakeSnapshot take);
  /// Writes the requested dump, within a few seconds.
  ~DumpWriter();
  DumpWriter(const DumpWriter&) = delete;
  DumpWriter& operator=(const DumpWriter&) = delete;

  /// Any thread, even with the reactor's lock. `reason` completes "written because ...".
  void request(const std::string& reason);
  /// Whether a dump is requested or being written.
  bool is_busy() const;

 private:
  struct State;

  static void run(State& state);

  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace q7x2
