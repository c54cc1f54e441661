// DeviceStream: the order of one call on tensors of a device, in the words of c10 alone.
//
//   caller's stream: ready ------------------------------------------------ wait(): until done
//   out:             after ready: copies strip after strip to the host, and raises the latch
//   the host:           the call runs on what is there, and opens the gate of each final strip
//   in:              after ready and out: waits at a gate, copies the strip to the device, ... done
//   after:           when the call is over: after done; then what follows it
//
// The host enqueues all of that at once and goes on. The latch lets the call begin, and the end of
// the call, whether it succeeded or not, opens all gates. The streams' names say which way data
// goes, from the device's side. Nothing else orders the streams, and nothing here is CUDA's: a
// device offers what device/stream_calls.h says.
//
// A future takes an event of `after`. By then `in` has gates of later calls, and whoever waits for
// one call must not wait for those.
//
// No result passes before all inputs of the call have left: tensors of a call may share memory.
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

/// The streams of a group's calls. Those of one lane open their gates in any order but pass them in
/// the order of the calls: collectives share a lane, and so do the messages of one peer.
class DeviceLanes {
 public:
  struct Lane {
    c10::Stream out;
    c10::Stream in;
    c10::Stream after;
    std::shared_ptr<BusTraffic> traffic;
  };
  static constexpr int kCollectives = -2;

  /// `peer`: kCollectives, a rank, or -1 for messages from any rank.
  Lane lane(c10::Device device, int peer);
  /// Of all lanes.
  const std::shared_ptr<BusTraffic>& traffic() const { return traffic_; }

 private:
  const std::shared_ptr<BusTraffic> traffic_ = std::make_shared<BusTraffic>();
  std::mutex mutex_;  // guards the next
  std::map<std::pair<c10::DeviceIndex, int>, Lane> lanes_;
};

class DeviceStream {
 public:
  struct Copy {
    at::Tensor from;
    at::Tensor to;
  };
  /// What passes for one task.
  struct Passage {
    Strips strips;
    std::vector<std::vector<Copy>> copies;  ///< by strip; none: nothing passes
  };
  /// What the device does once the results are there.
  struct Finish {
    std::function<void()> enqueue;  ///< on the current stream; null: nothing
    std::vector<at::Tensor> uses;   ///< whose memory that reads or writes
  };

  /// The call reads and writes after what the calling thread's current stream has to do now. Throws
  /// c10::Error if that stream is recorded for a graph.
  explicit DeviceStream(const DeviceLanes::Lane& lane);
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  /// Begins to copy to pinned memory, which raises and at last opens the latch.
  void read(const std::vector<std::pair<Passage, std::shared_ptr<InputLatch>>>& passages);
  /// Blocks the host until all is there.
  void await_reads() const;
  /// Has results copied to the device, in this order, each strip once it is final, and `last` when
  /// the call is over; then comes `finish`. Returns the gates of the passages; null: nothing
  /// passes.
  std::vector<std::shared_ptr<OutputGate>> write(const std::vector<Passage>& passages,
                                                 const std::vector<Copy>& last,
                                                 const Finish& finish);
  /// The call is over. Any thread.
  void open() noexcept;

  /// Once the call is over: a stream that waits for the results, and for no later call.
  const c10::Stream& results() const;
  /// Something more was enqueued on `results()`.
  void extend() { done_.record(lane_.after); }
  /// The calling thread's current stream waits for the results; the host does not.
  void block_current() const;
  /// Whether the device has the results.
  bool is_done() const { return done_.query(); }

 private:
  void keep_for(const at::Tensor& tensor, const c10::Stream& stream) const;
  void copy_in(const std::vector<Copy>& copies);
  /// The call is one whose tensors pass.
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
