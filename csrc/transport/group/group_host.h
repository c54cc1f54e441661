// GroupHost: what a group asks of the process that it belongs to. So a group knows neither the
// tables that it is in nor the flight recorder, which are above it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace q7x2 {

class Error;
class Locked;
class Task;
struct Peer;

class GroupHost {
 public:
  virtual ~GroupHost() = default;

  // Tasks of all groups.

  virtual const std::vector<std::shared_ptr<Task>>& active_tasks(Locked& locked) const = 0;
  /// Tells tasks which requests are complete, until no request is.
  virtual void drain(Locked& locked) = 0;

  // The group in `slot`.

  /// It has failed because of `culprit`, a member.
  virtual void blame(Locked& locked, int slot, Peer& culprit) = 0;
  /// It has ended; `ended_late`: because a member was late.
  virtual void close(Locked& locked, int slot, bool ended_late) = 0;
  /// Whether its shared memory must be polled from now on.
  virtual void set_sharing(Locked& locked, int slot, bool is_needed) = 0;
  /// The process because of which the program does not go on in some group; null: it is not known.
  virtual const Peer* awaited_peer(Locked& locked) const = 0;

  // The flight recorder, which observes.

  virtual void admit(Locked& locked, Task& task, int slot) = 0;
  virtual void submitted(Locked& locked, Task& task) = 0;
  virtual void started(Locked& locked, Task& task) = 0;
  virtual void failed(Locked& locked, int slot, const Error& error) = 0;
  /// See FlightLog::call_text.
  virtual std::string call_text(Locked& locked, int slot, uint64_t sequence) const = 0;
};

}  // namespace q7x2
