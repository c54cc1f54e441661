// DeviceStream: orders one call on device tensors by streams and events, using c10's functions
// only.
//
//   caller's stream: ready ------------------------------------------ wait(): waits for done
//   out:             waits for ready; copies strip after strip to the host, and raises the latch
//   the host:           the call runs on what has arrived, and opens the gate of each final strip
//   in:              waits for ready and out; waits at a gate, copies the strip to the device; done
//   after:           when the call is over: waits for done; then the work that follows
//
// The host enqueues all of this at once and does not wait. The latch lets the call begin. The end
// of the call opens all gates, whether or not it succeeded. "out" and "in" are named from the
// device's point of view. Nothing else orders the streams, and nothing here is specific to CUDA: a
// device provides the functions in device/stream_calls.h.
//
// A future records an event on `after` instead of `in`. When the call is over, `in` already has
// gates of later calls, and a waiter for one call must not wait for those.
//
// No result is copied to the device before all inputs of the call were copied from it, because the
// tensors of a call may share memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include "device/bus_traffic.h"
#include "device/gate.h"
#include "device/output_gate.h"
#include "device/strips.h"
#include "transport/task/input_latch.h"

namespace q7x2 {

/// The streams of a group's calls. Gates on one lane may open in any order, but its streams pass
/// them in the order of the calls. All collectives share a lane, and so do all messages of one
/// peer.
class DeviceLanes {
 public:
  struct Lane {
    c10::Stream out;
    c10::Stream in;
    c10::Stream after;
    std::shared_ptr<BusTraffic> traffic;
  };
  static constexpr int kCollectives = -2;

  /// `peer`: kCollectives, a rank, or -1 for messages that any rank may send.
  Lane lane(c10::Device device, int peer);
  /// The traffic of all lanes.
  const std::shared_ptr<BusTraffic>& traffic() const { return traffic_; }

 private:
  const std::shared_ptr<BusTraffic> traffic_ = std::make_shared<BusTraffic>();
  std::mutex mutex_;  // guards `lanes_`
  std::map<std::pair<c10::DeviceIndex, int>, Lane> lanes_;
};

class DeviceStream {
 public:
  struct Copy {
    at::Tensor from;
    at::Tensor to;
  };
  /// The copies between device and host for one task.
  struct Passage {
    Strips strips;
    std::vector<std::vector<Copy>> copies;  ///< by strip; empty: nothing is copied
  };
  /// The work of the device after the results were copied.
  struct Finish {
    std::function<void()> enqueue;  ///< runs on the current stream; null: none
    std::vector<at::Tensor> uses;   ///< tensors that this work reads or writes
  };

  /// The call reads and writes after the work that the calling thread's current stream has now.
  /// Throws c10::Error if that stream is being captured into a graph.
  explicit DeviceStream(const DeviceLanes::Lane& lane);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  /// Begins to copy to pinned memory. The copies raise the latch, and at last open it.
  void read(const std::vector<std::pair<Passage, std::shared_ptr<InputLatch>>>& passages);
  /// Blocks the host until all copies are complete.
  void await_reads() const;
  /// Enqueues the copies to the device, in this order: each strip once it is final, then `last`
  /// when the call is over, then `finish`. Returns the gates of the passages; null for a passage
  /// without copies.
  std::vector<std::shared_ptr<OutputGate>> write(const std::vector<Passage>& passages,
                                                 const std::vector<Copy>& last,
                                                 const Finish& finish);
  /// Called when the call is over. Any thread.
  void open() noexcept;

  /// Once the call is over: a stream that waits for the results, but for no later call.
  const c10::Stream& results() const;
  /// Called when more work was enqueued on `results()`.
  void extend() { done_.record(lane_.after); }
  /// Makes the calling thread's current stream wait for the results. The host does not wait.
  void block_current() const;
  /// Whether the results are on the device.
  bool is_done() const { return done_.query(); }

 private:
  void keep_for(const at::Tensor& tensor, const c10::Stream& stream) const;
  void copy_in(const std::vector<Copy>& copies);
  /// Counts the call in the traffic, once, as one whose tensors are staged.
  void count_as_staged();

  const DeviceLanes::Lane lane_;
  const StreamCalls& calls_;
  c10::Event ready_;
  c10::Event read_;
  c10::Event done_;
  Gate end_;
  bool is_staged_ = false;
  std::vector<std::shared_ptr<OutputGate>> gates_;
};

}  // namespace q7x2
