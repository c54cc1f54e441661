// The input of the ledger: counters, and operations as records.
#include "bindings/ledger_feed.h"

#include <algorithm>
#include <chrono>

#include <pybind11/chrono.h>
#include <pybind11/stl.h>

#include "backend/process_group.h"
#include "executor/probe/clock_task.h"
#include "ledger/flight_archive.h"
#include "ledger/ledger_feed.h"
#include "ledger/operation_table.h"
#include "transport/run/runtime.h"
#include "transport/run/runtimes.h"

namespace q7x2 {
namespace {

namespace py = pybind11;
using py::literals::operator""_a;

double seconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

int64_t wall(const FlightBatch& batch, int64_t steady) {
  return batch.wall_now - (batch.steady_now - steady);
}

py::dict dict_of(const OperationCounters& counters) {
  const DurationHistogram& durations = counters.durations;
  return py::dict(
      "count"_a = counters.count, "failed"_a = counters.failed,
      "input_bytes"_a = counters.input_bytes, "output_bytes"_a = counters.output_bytes,
      "sent_network_bytes"_a = counters.traffic.sent_network,
      "received_network_bytes"_a = counters.traffic.received_network,
      "sent_memory_bytes"_a = counters.traffic.sent_memory,
      "received_memory_bytes"_a = counters.traffic.received_memory,
      "seconds"_a = py::dict(
          "queued"_a = seconds(counters.queued), "took"_a = seconds(counters.took),
          "waited"_a = seconds(counters.waited), "select"_a = seconds(counters.work.select),
          "encode"_a = seconds(counters.work.encode), "decode"_a = seconds(counters.work.decode),
          "reduce"_a = seconds(counters.work.reduce), "copy"_a = seconds(counters.work.copy)),
      "took"_a = py::dict(
          "p50"_a = seconds(durations.quantile(0.5)), "p90"_a = seconds(durations.quantile(0.9)),
          "p99"_a = seconds(durations.quantile(0.99)), "longest"_a = seconds(counters.longest)),
      "predicted"_a =
          py::dict("seconds"_a = counters.predicted, "took"_a = counters.took_predicted));
}

py::dict dict_of(const GroupCounters& counters) {
  py::dict operations;
  for (size_t kind = 0; kind < GroupCounters::kKinds; ++kind) {
    const OperationCounters& each = counters.of(kind);
    if (each.count + each.failed > 0) operations[GroupCounters::name_of(kind)] = dict_of(each);
  }
  return operations;
}

py::dict dict_of(const FlightGroup& group, const GroupCounters& counters) {
  return py::dict("name"_a = group.name, "identity"_a = group.identity, "rank"_a = group.rank,
                  "ranks"_a = group.members.size(), "open"_a = group.is_open,
                  "operations"_a = dict_of(counters));
}

py::dict stats(bool reset) {
  std::vector<std::shared_ptr<Runtime>> runtimes;
  {
    const py::gil_scoped_release no_gil;
    runtimes = all_runtimes();
  }
  for (const std::shared_ptr<Runtime>& runtime : runtimes) runtime->enter();
  std::vector<FlightBatch> batches;
  FlightArchive::Counters ended;
  {
    const py::gil_scoped_release no_gil;
    for (const std::shared_ptr<Runtime>& runtime : runtimes) {
      Locked locked(runtime->lock());
      batches.push_back(runtime->flights().counters(locked, reset));
    }
    // Must be read after the living runtimes: one that ends meanwhile is in one of the two, or in
    // both.
    ended = FlightArchive::of_process().counters();
  }
  const auto now =
      std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  if (reset) FlightArchive::of_process().forget_counters(now);
  int64_t since = ended.since;
  py::list groups;
  for (const FlightArchive::Counted& each : ended.groups) {
    const bool is_there = std::ranges::any_of(
        batches, [&](const FlightBatch& batch) { return batch.process == each.process; });
    if (!is_there) groups.append(dict_of(each.group, each.counters));
  }
  for (const FlightBatch& batch : batches) {
    if (batch.counted_since != 0) since = std::max(since, wall(batch, batch.counted_since));
    for (const FlightBatch::Counted& each : batch.counters) {
      groups.append(dict_of(batch.groups.at(each.group), each.counters));
    }
  }
  return py::dict("since_ns"_a = since == 0 ? py::object(py::none()) : py::cast(since),
                  "now_ns"_a = now, "groups"_a = groups);
}

py::list columns() {
  py::list result;
  for (const OperationTable::Column& each : OperationTable::columns()) {
    result.append(py::make_tuple(each.name, each.is_text() ? "TEXT" : "INTEGER",
                                 std::string(1, each.format)));
  }
  return result;
}

template <typename T>
py::object or_none(bool is_known, const T& value) {
  return is_known ? py::object(py::cast(value)) : py::object(py::none());
}

py::dict dict_of(const OperationTable& operations) {
  return py::dict("count"_a = operations.count(), "last"_a = operations.last(),
                  "names"_a = operations.names(), "records"_a = py::bytes(operations.records()));
}

py::dict dict_of(const FlightGroup& group) {
  py::list members;
  for (const FlightGroup::Member& member : group.members) {
    members.append(
        py::dict("rank"_a = member.job_rank, "pid"_a = member.pid, "host"_a = member.host));
  }
  return py::dict("name"_a = group.name, "identity"_a = group.identity, "rank"_a = group.rank,
                  "members"_a = members,
                  "failure"_a = or_none(group.failure.has_value(),
                                        group.failure ? group.failure->text : std::string()));
}

py::dict dict_of(const FlightBatch& batch, const OperationTable& operations) {
  py::dict groups;
  for (const auto& [number, group] : batch.groups) groups[py::cast(number)] = dict_of(group);
  py::dict counters;
  for (const FlightBatch::Counted& each : batch.counters) {
    counters[py::cast(each.group)] = dict_of(each.counters);
  }
  return py::dict("process"_a = batch.process, "steady_ns"_a = batch.steady_now,
                  "wall_ns"_a = batch.wall_now, "recorded"_a = batch.recorded,
                  "lost"_a = batch.lost, "operations"_a = dict_of(operations), "groups"_a = groups,
                  "counters"_a = counters);
}

void attach(const std::shared_ptr<LedgerFeed>& feed) {
  const std::shared_ptr<Runtime> runtime = Runtime::existing();
  if (!runtime) return;
  Locked locked(runtime->lock());
  runtime->flights().follow(locked, feed);
}

py::list take(LedgerFeed& feed) {
  std::vector<FlightBatch> batches;
  std::vector<OperationTable> tables;
  {
    const py::gil_scoped_release no_gil;
    for (const std::shared_ptr<Runtime>& runtime : all_runtimes()) {
      batches.push_back(runtime->flights().read(runtime->lock()));
    }
    // Must be read after the living runtimes: one that ends meanwhile leaves the rest here.
    for (FlightBatch& rest : feed.take()) batches.push_back(std::move(rest));
    std::erase_if(batches, [](const FlightBatch& batch) { return batch.process == 0; });
    std::ranges::sort(batches, {}, &FlightBatch::steady_now);
    for (const FlightBatch& batch : batches) tables.emplace_back(batch.operations);
  }
  py::list result;
  for (size_t i = 0; i < batches.size(); ++i) result.append(dict_of(batches[i], tables[i]));
  return result;
}

py::tuple clock_offset(ProcessGroupQ7x2& backend, const std::vector<int>& ranks,
                       std::chrono::milliseconds timeout) {
  ClockOffset offset;
  {
    const py::gil_scoped_release no_gil;
    offset = compare_clocks(backend.group_pointer(), ranks, timeout);
  }
  return py::make_tuple(offset.nanoseconds, offset.uncertainty);
}

}  // namespace

void bind_ledger_feed(py::module_& module) {
  py::class_<LedgerFeed, std::shared_ptr<LedgerFeed>>(
      module, "LedgerFeed", "What the operations of this process did, for the one who writes it.")
      .def(py::init<>())
      .def("attach", &attach, py::call_guard<py::gil_scoped_release>(),
           "Follow the groups of this process, those of now and those to come.")
      .def("wait", &LedgerFeed::wait, "seconds"_a, py::call_guard<py::gil_scoped_release>(),
           "Wait until a group fails, or `wake` is called, or the time has passed.")
      .def("wake", &LedgerFeed::wake, "End a `wait`.")
      .def("take", &take, "What is new since the last call.");
  module.def("ledger_columns", &columns,
             "Names, SQL types and formats of an operation's values, as its record has them.");
  module.def(
      "clock_offset", &clock_offset, "group"_a, "ranks"_a, "timeout"_a,
      "How far rank 0's clock is ahead of this rank's, and by how much that may be wrong, in "
      "nanoseconds. `ranks`: the ranks that call it in addition to rank 0.");
  module.def("ledger_stats", &stats, "reset"_a,
             "The counters of all groups, also of those that have ended.");
}

}  // namespace q7x2
