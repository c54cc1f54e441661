#include "executor/probe.h"

#include <sys/utsname.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <type_traits>

#include "base/version.h"
#include "executor/codec_rates.h"
#include "executor/message.h"
#include "executor/probe_tasks.h"
#include "fabric/infer.h"
#include "fabric/json.h"
#include "kernels/reduce.h"
#include "transport/engine.h"
#include "transport/ucx.h"

namespace q7x2 {
namespace {

using Meeting = std::pair<int, int>;

constexpr int kAllRounds = 16;
constexpr int kMostLocalPings = 2;
// All streams of a probe together, in seconds, where the links are slow.
constexpr double kStreamBudget = 1.3;
constexpr double kLongestStream = 0.3;
constexpr double kShortestStream = 0.12;

// A private link that says nothing for so long leads nowhere.
constexpr std::chrono::milliseconds kTrial{1000};

constexpr uint32_t kConductTag = 0x7000;
constexpr uint32_t kReportTag = 0x7001;
constexpr uint32_t kTextTag = 0x7002;

enum class Act : int32_t { kPing, kStream, kEnd };

// On the wire between ranks of one build; others are refused by their cards.
struct Order {
  Act act = Act::kEnd;
  int32_t peer = -1;
  int32_t first = 0;
  int32_t wire = 0;
  double seconds = 0;   // of a stream
  uint64_t length = 0;  // of the result that follows kEnd
};

struct Report {
  // Of a host: cores, copy rate, reduce rate. kPing: round trip, spread, overhead. kStream: of what
  // came, rate and spread; the rate that was acknowledged of what went.
  std::array<double, 3> figures{};
  uint64_t length = 0;  // of a host's description, which follows
};
static_assert(std::is_trivially_copyable_v<Order> && std::is_trivially_copyable_v<Report>);

double seconds_since(TimePoint start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One rank's end of the probe: messages, and what it measures when it is told to.
class Participant {
 public:
  Participant(std::shared_ptr<Group> group, const ProbeOptions& options)
      : group_(std::move(group)), options_(options) {}

  Group& group() { return *group_; }

  void send(int to, uint32_t tag, const std::string& bytes) {
    run(message(MessageTask::Direction::kSend, to, tag, std::make_shared<std::string>(bytes)));
  }
  std::string receive(int from, uint32_t tag, size_t length) {
    const auto bytes = std::make_shared<std::string>(length, '\0');
    run(message(MessageTask::Direction::kReceive, from, tag, bytes));
    return *bytes;
  }
  template <typename T>
  void send_value(int to, uint32_t tag, const T& value) {
    send(to, tag, std::string(reinterpret_cast<const char*>(&value), sizeof(value)));
  }
  template <typename T>
  T receive_value(int from, uint32_t tag) {
    T value;
    std::memcpy(&value, receive(from, tag, sizeof(value)).data(), sizeof(value));
    return value;
  }

  Report ping(int peer, Wire wire, bool first) {
    const auto task = std::make_shared<PingTask>(group_, peer, wire, first, timeout_of(wire));
    if (!run_over(wire, task) || !first) return {};
    return {{task->round_trip(), task->spread(), task->overhead()}};
  }

  Report stream(int peer, Wire wire, double seconds) {
    const auto task = std::make_shared<StreamTask>(group_, peer, wire, seconds, timeout_of(wire));
    if (!run_over(wire, task)) return {};
    return {{task->arrivals().steady_rate(), task->arrivals().spread(),
             task->acknowledgements().whole_rate()}};
  }

  /// `text` becomes the hardware as JSON.
  Report describe(std::string& text) {
    Fabric::Hardware hardware;
    try {
      HostInfo info = host_info();
      hardware = {.machine = machine_key(),
                  .cpu = info.cpu_model,
                  .packages = info.packages,
                  .numa_nodes = info.numa_nodes,
                  .cores = info.cores,
                  .threads = info.hardware_threads,
                  .memory = info.memory_bytes,
                  .nics = {},
                  .rdma = std::move(info.rdma_devices),
                  .gpus = std::move(info.gpus)};
      std::copy_if(info.network_interfaces.begin(), info.network_interfaces.end(),
                   std::back_inserter(hardware.nics),
                   [](const NetworkInterface& nic) { return nic.up && !nic.loopback; });
    } catch (const Error&) {
      // Locality is for people and for placing threads; a host that hides it still has its rates.
      hardware = {};
    }
    text = hardware_to_json(hardware);
    const auto [copy, reduce] = memory_rates();
    return {{static_cast<double>(usable_cpus()), copy, reduce}, text.size()};
  }

 private:
  std::shared_ptr<Task> message(MessageTask::Direction direction, int peer, uint32_t tag,
                                std::shared_ptr<std::string> bytes) {
    char* data = bytes->data();
    const size_t length = bytes->size();
    return std::make_shared<MessageTask>(group_, direction, peer, tag, data, length,
                                         std::move(bytes), options_.timeout);
  }

  std::chrono::milliseconds timeout_of(Wire wire) const {
    return wire == Wire::kPrivate ? std::min(options_.timeout, kTrial) : options_.timeout;
  }

  /// False where a private link turned out not to work: then there is none.
  bool run_over(Wire wire, const std::shared_ptr<Task>& task) {
    if (wire == Wire::kShared) {
      run(task);
      return true;
    }
    group_->engine().submit(task, /*caller_waits=*/true);
    group_->engine().wait(*task, TimePoint::max());
    if (const auto error = group_->error()) throw Error(*error);
    return !task->error();
  }

  void run(const std::shared_ptr<Task>& task) {
    group_->engine().submit(task, /*caller_waits=*/true);
    group_->engine().wait(*task, TimePoint::max());
    if (task->error()) throw Error(*task->error());
  }

  // Bytes a second that this core copies and adds, out of caches of its own: the best of some,
  // since whatever else runs can only make it slower.
  static std::pair<double, double> memory_rates() {
    constexpr size_t kCount = size_t{1} << 21;
    constexpr size_t kBytes = kCount * sizeof(float);
    constexpr int kTimes = 5;
    std::vector<float> target(kCount, 1.0F);
    const std::vector<float> source(kCount, 2.0F);
    const auto best = [](const auto& body) {
      double rate = 0;
      for (int i = 0; i < kTimes; ++i) {
        const auto start = Clock::now();
        body();
        rate = std::max(rate, static_cast<double>(kBytes) / std::max(seconds_since(start), 1e-9));
      }
      return rate;
    };
    const double copy = best([&] { std::memcpy(target.data(), source.data(), kBytes); });
    const double fold = best([&] {
      const std::array<const void*, 2> sources{target.data(), source.data()};
      reduce(target.data(), sources, kCount, DType::kFloat32, ReduceKind::kSum);
    });
    return {copy, fold};
  }

  const std::shared_ptr<Group> group_;
  const ProbeOptions options_;
};

class Conductor {
 public:
  Conductor(const std::shared_ptr<Group>& group, const ProbeOptions& options)
      : me_(group, options), placement_(placement_of(*group)), options_(options) {
    measured_.host_of = placement_.host_of;
    ranks_of_.resize(placement_.names.size());
    for (size_t rank = 0; rank < placement_.host_of.size(); ++rank) {
      ranks_of_[static_cast<size_t>(placement_.host_of[rank])].push_back(static_cast<int>(rank));
    }
  }

  Fabric run() {
    const auto start = Clock::now();
    describe_hosts();
    ping_inside_hosts();
    if (hosts() > 1) measure_network();
    if (options_.all_pairs) measure_pairs();
    Fabric fabric = infer(measured_);
    fabric.codecs = measure_codecs();
    fabric.made.seconds = seconds_since(start);
    return fabric;
  }

 private:
  int hosts() const { return static_cast<int>(ranks_of_.size()); }
  int leader(int host) const { return ranks_of_[static_cast<size_t>(host)].front(); }

  void describe_hosts() {
    for (int host = 0; host < hosts(); ++host) {
      std::string text;
      Report report;
      if (host == 0) {
        report = me_.describe(text);
      } else {
        report = me_.receive_value<Report>(leader(host), kReportTag);
        if (report.length > kMaxFabricBytes) {
          throw Error(ErrorCode::kMismatch,
                      "a host's description has " + std::to_string(report.length) + " bytes");
        }
        text = me_.receive(leader(host), kTextTag, report.length);
      }
      const auto h = static_cast<size_t>(host);
      measured_.hosts.push_back({.name = placement_.names[h],
                                 .key = placement_.keys[h],
                                 .cores = std::max(1, static_cast<int>(report.figures[0])),
                                 .copy_rate = report.figures[1],
                                 .reduce_rate = report.figures[2],
                                 .hardware = hardware_from_json(text)});
    }
  }

  /// The disjoint `meetings` of ranks, all at once; each end's report.
  std::map<int, Report> meet(Act act, const std::vector<Meeting>& meetings, Wire wire,
                             double seconds) {
    const Meeting* own = nullptr;
    std::vector<int> others;
    for (const Meeting& meeting : meetings) {
      for (const auto& [rank, peer, first] :
           {std::tuple(meeting.first, meeting.second, 1), {meeting.second, meeting.first, 0}}) {
        if (rank == 0) {
          own = &meeting;
          continue;
        }
        me_.send_value(rank, kConductTag,
                       Order{.act = act,
                             .peer = peer,
                             .first = first,
                             .wire = static_cast<int32_t>(wire),
                             .seconds = seconds});
        others.push_back(rank);
      }
    }
    std::map<int, Report> reports;
    if (own != nullptr) {
      const bool first = own->first == 0;
      const int peer = first ? own->second : own->first;
      reports[0] =
          act == Act::kPing ? me_.ping(peer, wire, first) : me_.stream(peer, wire, seconds);
    }
    for (const int rank : others) reports[rank] = me_.receive_value<Report>(rank, kReportTag);
    return reports;
  }

  /// The meetings that came about.
  std::vector<Meeting> ping(const std::vector<Meeting>& meetings, Wire wire = Wire::kShared) {
    const auto reports = meet(Act::kPing, meetings, wire, 0);
    std::vector<Meeting> done;
    for (const auto& [a, b] : meetings) {
      const auto& [round_trip, spread, overhead] = reports.at(a).figures;
      if (round_trip <= 0) continue;
      done.emplace_back(a, b);
      measured_.pings.push_back({placement_.host_of[static_cast<size_t>(a)],
                                 placement_.host_of[static_cast<size_t>(b)], round_trip, spread,
                                 overhead, static_cast<int>(wire)});
    }
    return done;
  }

  std::vector<Measurements::Flow> stream(const std::vector<Meeting>& meetings, double seconds,
                                         Wire wire = Wire::kShared) {
    const auto reports = meet(Act::kStream, meetings, wire, seconds);
    std::vector<Measurements::Flow> flows;
    for (const auto& [a, b] : meetings) {
      for (const auto& [from, to] : {Meeting(a, b), Meeting(b, a)}) {
        const auto& [received, spread, unused] = reports.at(to).figures;
        const double acknowledged = reports.at(from).figures[2];
        flows.push_back({placement_.host_of[static_cast<size_t>(from)],
                         placement_.host_of[static_cast<size_t>(to)],
                         confirmed_rate(received, acknowledged), spread, static_cast<int>(wire)});
      }
    }
    return flows;
  }

  void ping_inside_hosts() {
    for (int i = 0; i < kMostLocalPings; ++i) {
      std::vector<Meeting> meetings;
      for (const std::vector<int>& ranks : ranks_of_) {
        // The next rank, and then the last: near and far in most placements.
        if (i == 0 && ranks.size() > 1) meetings.emplace_back(ranks[0], ranks[1]);
        if (i == 1 && ranks.size() > 2) meetings.emplace_back(ranks[0], ranks.back());
      }
      ping(meetings);
    }
  }

  std::vector<Meeting> leaders(const std::vector<Meeting>& of_hosts) const {
    std::vector<Meeting> meetings;
    for (const auto& [a, b] : of_hosts) meetings.emplace_back(leader(a), leader(b));
    return meetings;
  }

  void measure_network() {
    const auto rounds = tournament(hosts(), kAllRounds);
    const double seconds = std::clamp(kStreamBudget / static_cast<double>(rounds.size()),
                                      kShortestStream, kLongestStream);
    for (const auto& round : rounds) {
      const std::vector<Meeting> meetings = leaders(round);
      ping(meetings);
      measured_.rounds.push_back(stream(meetings, seconds));
      measure_private_links(meetings, seconds);
    }
  }

  void measure_private_links(std::vector<Meeting> meetings, double seconds) {
    std::erase_if(meetings, [this](const Meeting& meeting) {
      return !me_.group().has_private_link(meeting.first, meeting.second);
    });
    if (meetings.empty()) return;
    const auto flows = stream(ping(meetings, Wire::kPrivate), seconds, Wire::kPrivate);
    // A direction that carried nothing makes the link useless.
    for (const Measurements::Flow& flow : flows) {
      if (flow.rate > 0) measured_.rounds.back().push_back(flow);
    }
  }

  void measure_pairs() {
    measured_.pings.clear();
    ping_inside_hosts();
    for (int a = 0; a < hosts(); ++a) {
      for (int b = a + 1; b < hosts(); ++b) {
        const std::vector<Meeting> meeting = leaders({{a, b}});
        ping(meeting);
        const auto flows = stream(meeting, kLongestStream);
        measured_.solo.insert(measured_.solo.end(), flows.begin(), flows.end());
      }
    }
  }

  Participant me_;
  const Placement placement_;
  const ProbeOptions options_;
  std::vector<std::vector<int>> ranks_of_;  // by host
  Measurements measured_;
};

Wire wire_of(const Order& order, const Group& group) {
  if (order.wire == static_cast<int32_t>(Wire::kShared)) return Wire::kShared;
  if (order.wire != static_cast<int32_t>(Wire::kPrivate) ||
      !group.has_private_link(group.rank(), order.peer)) {
    throw Error(ErrorCode::kMismatch, "the probe wants a talk over a link that is not there", 0);
  }
  return Wire::kPrivate;
}

std::string driver_version() {
  std::ifstream file("/sys/module/nvidia/version");
  std::string version;
  return file >> version ? version : "";
}

std::string kernel_release() {
  utsname names{};
  return ::uname(&names) == 0 ? names.release : "";
}

}  // namespace

Placement placement_of(const Group& group) {
  Placement placement;
  std::map<std::string, int> host_of_key;
  std::set<std::string> names;
  for (int rank = 0; rank < group.world_size(); ++rank) {
    const Card& card = group.card(rank);
    const auto [it, fresh] =
        host_of_key.try_emplace(card.host_key, static_cast<int>(placement.names.size()));
    placement.host_of.push_back(it->second);
    if (!fresh) continue;
    std::string name = card.hostname;
    for (int i = 2; !names.insert(name).second; ++i) name = card.hostname + "/" + std::to_string(i);
    placement.names.push_back(name);
    placement.keys.push_back(card.host_key);
  }
  return placement;
}

std::vector<std::vector<Meeting>> tournament(int hosts, int all) {
  std::vector<std::vector<Meeting>> rounds;
  if (hosts > all) {
    for (int distance = 1; distance < hosts; distance *= 2) {
      auto& round = rounds.emplace_back();
      for (int host = 0; host < hosts; ++host) {
        if (const int other = host ^ distance; host < other && other < hosts) {
          round.emplace_back(host, other);
        }
      }
    }
    return rounds;
  }
  // The circle method: one stays, the others move on by one seat a round. An odd number gets an
  // empty seat, and whoever sits opposite has a rest.
  const int seats = hosts + hosts % 2;
  for (int step = 0; step + 1 < seats; ++step) {
    auto& round = rounds.emplace_back();
    const auto at = [&](int seat) { return seat == 0 ? 0 : 1 + (seat - 1 + step) % (seats - 1); };
    for (int seat = 0; seat < seats / 2; ++seat) {
      const auto [a, b] = std::minmax({at(seat), at(seats - 1 - seat)});
      if (b < hosts) round.emplace_back(a, b);
    }
  }
  return rounds;
}

Fabric conduct_probe(const std::shared_ptr<Group>& group, const ProbeOptions& options) {
  Fabric fabric = Conductor(group, options).run();
  fabric.made.source = "probe";
  fabric.made.time = std::chrono::duration_cast<std::chrono::seconds>(
                         std::chrono::system_clock::now().time_since_epoch())
                         .count();
  fabric.made.q7x2 = kVersion;
  fabric.made.ucx = ucx_version();
  fabric.made.driver = driver_version();
  fabric.made.kernel = kernel_release();
  return fabric;
}

void announce(const std::shared_ptr<Group>& group, const std::string& result,
              const ProbeOptions& options) {
  Participant me(group, options);
  for (int rank = 1; rank < group->world_size(); ++rank) {
    me.send_value(rank, kConductTag, Order{.act = Act::kEnd, .length = result.size()});
    me.send(rank, kTextTag, result);
  }
}

std::string follow_probe(const std::shared_ptr<Group>& group, const ProbeOptions& options) {
  Participant me(group, options);
  const std::vector<int> host_of = placement_of(*group).host_of;
  const int host = host_of[static_cast<size_t>(group->rank())];
  const auto leader = std::find(host_of.begin(), host_of.end(), host) - host_of.begin();
  if (leader == group->rank()) {
    std::string text;
    me.send_value(0, kReportTag, me.describe(text));
    me.send(0, kTextTag, text);
  }
  while (true) {
    const auto order = me.receive_value<Order>(0, kConductTag);
    Report report;
    switch (order.act) {
      case Act::kPing:
      case Act::kStream:
        if (order.peer < 0 || order.peer >= group->world_size() || order.peer == group->rank()) {
          throw Error(ErrorCode::kMismatch,
                      "the probe wants a talk with rank " + std::to_string(order.peer), 0);
        }
        report = order.act == Act::kPing
                     ? me.ping(order.peer, wire_of(order, *group), order.first != 0)
                     : me.stream(order.peer, wire_of(order, *group), order.seconds);
        break;
      case Act::kEnd:
        if (order.length > kMaxFabricBytes) {
          throw Error(ErrorCode::kMismatch,
                      "the probe's result has " + std::to_string(order.length) + " bytes", 0);
        }
        return me.receive(0, kTextTag, order.length);
    }
    me.send_value(0, kReportTag, report);
  }
}

}  // namespace q7x2
