#include "ledger/flight_json.h"

#include <unistd.h>

#include <array>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/version.h"
#include "ledger/call_signature.h"

namespace q7x2 {
namespace {

using Json = nlohmann::ordered_json;

// The version of the format, as in torch/csrc/distributed/c10d/FlightRecorder.hpp.
constexpr const char* kFormatVersion = "2.10";

std::string hexadecimal(uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016" PRIx64, value);
  return text.data();
}

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// The name that c10::toString prints.
const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBytes:
      return "Byte";
    case DType::kInt8:
      return "Char";
    case DType::kUInt16:
      return "UInt16";
    case DType::kInt16:
      return "Short";
    case DType::kUInt32:
      return "UInt32";
    case DType::kInt32:
      return "Int";
    case DType::kUInt64:
      return "UInt64";
    case DType::kInt64:
      return "Long";
    case DType::kBool:
      return "Bool";
    case DType::kFloat16:
      return "Half";
    case DType::kBFloat16:
      return "BFloat16";
    case DType::kFloat32:
      return "Float";
    case DType::kFloat64:
      return "Double";
    case DType::kFloat8E4M3FN:
      return "Float8_e4m3fn";
    case DType::kFloat8E4M3FNUZ:
      return "Float8_e4m3fnuz";
    case DType::kFloat8E5M2:
      return "Float8_e5m2";
    case DType::kFloat8E5M2FNUZ:
      return "Float8_e5m2fnuz";
    case DType::kComplex64:
      return "ComplexFloat";
    case DType::kComplex128:
      return "ComplexDouble";
  }
  return "Undefined";
}

const char* to_string(FlightRecord::State state) {
  switch (state) {
    case FlightRecord::State::kSubmitted:
      return "submitted";
    case FlightRecord::State::kStarted:
      return "started";
    case FlightRecord::State::kDone:
      return "done";
    case FlightRecord::State::kFailed:
      return "failed";
  }
  return "";
}

/// PyTorch has no state for failures: a failed operation was scheduled or started, but not
/// completed.
const char* torch_state(const FlightRecord& record) {
  if (record.state == FlightRecord::State::kDone) return "completed";
  return record.started == 0 ? "scheduled" : "started";
}

const char* to_string(FlightWaits::Via via) {
  switch (via) {
    case FlightWaits::Via::kSharedMemory:
      return "shared memory";
    case FlightWaits::Via::kUcx:
      return "UCX";
    case FlightWaits::Via::kPrivateLink:
      return "private link";
    case FlightWaits::Via::kStreams:
      return "many connections";
  }
  return "";
}

std::string torch_title(const FlightRecord& record, int rank) {
  const std::string self = std::to_string(rank);
  const std::string peer = std::to_string(record.peer);
  switch (record.kind) {
    case FlightRecord::Kind::kSend:
      return "q7x2:send " + self + "->" + peer;
    case FlightRecord::Kind::kReceive:
      return "q7x2:recv " + self + "<-" + peer;
    case FlightRecord::Kind::kCollective:
      return std::string("q7x2:") + to_string(record.collective);
  }
  return "";
}

std::string key_of(const FlightGroup& group) {
  return group.name + "@" + group.identity;
}

class Writer {
 public:
  explicit Writer(const FlightSnapshot& snapshot) : snapshot_(snapshot) {}

  Json entry(const FlightRecord& record) const {
    const FlightGroup& group = snapshot_.groups.at(record.group);
    const bool is_message = record.kind != FlightRecord::Kind::kCollective;
    const bool is_done = record.state == FlightRecord::State::kDone;
    Json json;
    json["record_id"] = record.id - 1;
    json["pg_id"] = record.group;
    json["process_group"] = Json::array({key_of(group), "undefined"});
    json["collective_seq_id"] = is_message ? 0 : record.sequence;
    json["p2p_seq_id"] = is_message ? record.sequence : 0;
    json["op_id"] = record.id;
    json["profiling_name"] = torch_title(record, group.rank);
    json["time_created_ns"] = wall(record.submitted);
    if (is_done) {
      json["duration_ms"] = static_cast<double>(record.finished - record.submitted) * 1e-6;
    }
    json["input_sizes"] = sizes(record, record.input_bytes);
    json["input_dtypes"] = Json::array({torch_name(record.dtype)});
    json["output_sizes"] = sizes(record, record.output_bytes);
    json["output_dtypes"] = Json::array({torch_name(record.dtype)});
    json["state"] = torch_state(record);
    json["time_discovered_started_ns"] = wall(record.started);
    json["time_discovered_completed_ns"] = is_done ? wall(record.finished) : Json();
    json["retired"] = record.is_over();
    json["timeout_ms"] = record.timeout_ms;
    json["is_p2p"] = is_message;
    json["q7x2"] = details(record, is_message);
    return json;
  }

  Json groups() const {
    Json list = Json::array();
    for (const auto& [number, group] : snapshot_.groups) {
      Json members = Json::array();
      for (const FlightGroup::Member& member : group.members) {
        members.push_back({{"rank", member.job_rank},
                           {"process", hexadecimal(member.process)},
                           {"pid", member.pid},
                           {"host", member.host}});
      }
      Json json{{"pg_id", number},    {"key", key_of(group)},          {"name", group.name},
                {"rank", group.rank}, {"members", std::move(members)}, {"open", group.is_open}};
      if (group.failure) {
        json["failure"] = {{"code", q7x2::to_string(group.failure->code)},
                           {"rank", group.failure->rank},
                           {"text", group.failure->text},
                           {"time_ns", wall(group.failure->at)}};
      }
      list.push_back(std::move(json));
    }
    return list;
  }

  Json pg_config() const {
    Json json = Json::object();
    for (const auto& [number, group] : snapshot_.groups) {
      std::string ranks;
      for (const FlightGroup::Member& member : group.members) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(member.job_rank);
      }
      json[key_of(group)] = {
          {"name", group.name}, {"desc", "undefined"}, {"ranks", "[" + ranks + "]"}};
    }
    return json;
  }

  /// The newest collective of each group that was submitted, started or completed; -1: none.
  Json pg_status() const {
    Json json = Json::object();
    for (const auto& [number, group] : snapshot_.groups) {
      int64_t submitted = -1;
      int64_t started = -1;
      int64_t completed = -1;
      for (const FlightRecord& record : snapshot_.records) {
        if (record.group != number || record.kind != FlightRecord::Kind::kCollective) continue;
        const auto sequence = static_cast<int64_t>(record.sequence);
        submitted = std::max(submitted, sequence);
        if (record.started != 0) started = std::max(started, sequence);
        if (record.state == FlightRecord::State::kDone) completed = std::max(completed, sequence);
      }
      json[std::to_string(number)] = {{"last_enqueued_collective", submitted},
                                      {"last_started_collective", started},
                                      {"last_completed_collective", completed}};
    }
    return json;
  }

 private:
  Json wall(int64_t steady) const {
    if (steady == 0) return {};
    return snapshot_.wall_now - (snapshot_.steady_now - steady);
  }

  static Json sizes(const FlightRecord& record, uint64_t bytes) {
    return Json::array({Json::array({bytes / element_size(record.dtype)})});
  }

  Json details(const FlightRecord& record, bool is_message) const {
    Json json;
    json["state"] = to_string(record.state);
    if (is_message) {
      json["peer"] = record.peer;
      json["tag"] = record.tag;
    } else {
      if (record.peer >= 0) json["root"] = record.peer;
      if (record.dtype != DType::kBytes) json["dtype"] = q7x2::to_string(record.dtype);
      if (is_reduced(record)) json["reduce"] = q7x2::to_string(record.reduce);
      json["plan"] = std::string(snapshot_.names.name_of(record.plan));
      if (record.codec != 0) json["codec"] = std::string(snapshot_.names.name_of(record.codec));
      if (record.predicted > 0) json["predicted_ns"] = std::llround(double{record.predicted} * 1e9);
      json["work_ns"] = {{"select", record.work.select},
                         {"encode", record.work.encode},
                         {"decode", record.work.decode},
                         {"reduce", record.work.reduce},
                         {"copy", record.work.copy}};
      json["slices"] = Json::array({record.slices_done, record.slices});
      json["fingerprint"] = hexadecimal(record.fingerprint);
      if (record.is_internal) json["internal"] = true;
    }
    json["bytes"] = std::max(record.input_bytes, record.output_bytes);
    json["sent"] = {{"network", record.traffic.sent_network},
                    {"memory", record.traffic.sent_memory}};
    json["received"] = {{"network", record.traffic.received_network},
                        {"memory", record.traffic.received_memory}};
    json["waited_ns"] = record.waited;
    if (record.waited_for >= 0) {
      json["waited_most"] = {{"rank", record.waited_for}, {"percent", record.waited_share}};
    }
    json["progressed_ns"] = wall(record.progressed);
    json["finished_ns"] = wall(record.finished);
    if (record.state == FlightRecord::State::kFailed) {
      json["error"] = q7x2::to_string(record.error);
    }
    const auto found = snapshot_.waits.find(record.id);
    if (found != snapshot_.waits.end() && found->second.count > 0) add_waits(json, found->second);
    return json;
  }

  static void add_waits(Json& json, const FlightWaits& known) {
    Json waits = Json::array();
    const size_t count = std::min<size_t>(known.count, FlightWaits::kMost);
    for (size_t i = 0; i < count; ++i) {
      const FlightWaits::Wait& wait = known.waits[i];
      waits.push_back({{"rank", wait.rank},
                       {"for", wait.is_receive ? "receive" : "send"},
                       {"via", to_string(wait.via)}});
    }
    json["waits"] = std::move(waits);
    json["waits_left_out"] = known.count - count;
  }

  const FlightSnapshot& snapshot_;
};

}  // namespace

std::string to_json(const FlightSnapshot& snapshot) {
  const Writer writer(snapshot);
  const Json process{{"version", kVersion},
                     {"reason", snapshot.reason},
                     {"rank", snapshot.job_rank()},
                     {"process", hexadecimal(snapshot.process)},
                     {"pid", ::getpid()},
                     {"host", host_name()},
                     {"time_ns", snapshot.wall_now},
                     {"steady_ns", snapshot.steady_now},
                     {"capacity", snapshot.capacity},
                     {"recorded", snapshot.recorded},
                     {"groups", writer.groups()}};
  // The name of a host or a group may contain any bytes.
  const auto dump = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  std::string text = "{\"version\": " + dump(kFormatVersion) +
                     ",\n\"pg_config\": " + dump(writer.pg_config()) +
                     ",\n\"pg_status\": " + dump(writer.pg_status()) +
                     ",\n\"q7x2\": " + dump(process) + ",\n\"entries\": [";
  const char* separator = "\n";
  for (const FlightRecord& record : snapshot.records) {
    text += separator + dump(writer.entry(record));
    separator = ",\n";
  }
  return text + "\n]}\n";
}

}  // namespace q7x2
