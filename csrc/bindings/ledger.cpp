#include "bindings/ledger.h"

#include <pybind11/stl.h>

#include "backend/process_group.h"
#include "ledger/flight_archive.h"
#include "ledger/flight_json.h"
#include "transport/run/group_facts.h"
#include "transport/run/runtime.h"
#include "transport/run/runtimes.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

std::optional<std::string> flight_json(std::string reason) {
  const std::vector<std::shared_ptr<Runtime>> runtimes = all_runtimes();
  if (!runtimes.empty()) {
    runtimes.back()->enter();
    return to_json(runtimes.back()->flight_snapshot(std::move(reason)));
  }
  std::optional<FlightSnapshot> records = FlightArchive::of_process().records();
  if (!records) return std::nullopt;
  records->reason = std::move(reason);
  return to_json(*records);
}

py::list members_of(const Group& group) {
  py::list members;
  for (int r = 0; r < group.world_size(); ++r) {
    members.append(py::dict("rank"_a = r, "host"_a = group.membership().peer_info(r).hostname,
                            "pid"_a = group.membership().peer_info(r).pid));
  }
  return members;
}

py::list peers_of(const std::vector<PeerFacts>& facts) {
  py::list peers;
  for (const PeerFacts& each : facts) {
    peers.append(py::dict(
        "rank"_a = each.rank, "same_host"_a = each.same_host,
        "shares_memory"_a = each.shares_memory, "memory_refusal"_a = each.memory_refusal,
        "transports"_a = each.transports, "has_private_link"_a = each.has_private_link,
        "uses_private_link"_a = each.uses_private_link, "uses_streams"_a = each.uses_streams,
        "is_encrypted"_a = each.is_encrypted, "connections"_a = each.tcp.connections,
        "round_trip"_a = each.tcp.round_trip, "sent_again"_a = each.tcp.sent_again));
  }
  return peers;
}

py::dict path_of(const BusTraffic::Path& path) {
  return py::dict("calls"_a = path.calls.load(), "to_host"_a = path.to_host.load(),
                  "to_device"_a = path.to_device.load());
}

py::list servers_of(const ProcessGroupQ7x2& backend) {
  py::list found;
  if (!backend.servers()) return found;
  const ServerGroup& group = *backend.servers();
  const bool is_usable = !group.is_broken();
  for (int i = 0; i < group.servers(); ++i) {
    const PeerInfo& peer_info = group.group().membership().peer_info(group.ranks() + i);
    found.append(py::dict("name"_a = group.names()[static_cast<size_t>(i)],
                          "host"_a = peer_info.hostname, "pid"_a = peer_info.pid,
                          "serves"_a = is_usable, "calls"_a = group.served(),
                          "declined"_a = group.declined()));
  }
  return found;
}

py::dict describe_group(ProcessGroupQ7x2& backend) {
  Group& group = backend.group();
  group.runtime().enter();
  std::vector<PeerFacts> facts;
  std::optional<Error> error;
  {
    const py::gil_scoped_release no_gil;
    facts = peer_facts(group);
    error = group.error();
  }
  return py::dict("name"_a = group.membership().name(), "rank"_a = group.rank(),
                  "world_size"_a = group.world_size(), "members"_a = members_of(group),
                  "hosts"_a = ranks_by_host(group.membership()), "peers"_a = peers_of(facts),
                  "transports"_a = group.runtime().transports(), "servers"_a = servers_of(backend),
                  "algorithms_allowed"_a = group.membership().peer_info(group.rank()).algorithms,
                  "staged"_a = path_of(backend.bus_traffic().staged),
                  "coded"_a = path_of(backend.bus_traffic().coded),
                  "direct"_a = path_of(backend.bus_traffic().direct),
                  "timeout"_a = static_cast<double>(backend.options()->timeout.count()) * 1e-3,
                  "flight_recorder"_a = group.runtime().flights().capacity(),
                  "error"_a = error ? py::object(py::str(error->what())) : py::object(py::none()));
}

}  // namespace

void bind_ledger(py::module_& module) {
  module.def("flight_json", &flight_json, "reason"_a, py::call_guard<py::gil_scoped_release>(),
             "What the flight recorder holds, as JSON; None if there has been no q7x2 group.");
  module.def("describe_group", &describe_group, "group"_a,
             "A group's hosts, and the ways to its ranks.");
}

}  // namespace q7x2
