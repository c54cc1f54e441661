#include "fabric/json.h"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "base/error.h"

namespace q7x2 {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
// The format itself is five deep. Together with the length of the text this bounds memory: a value
// of a text may be a single character.
constexpr int kMaxDepth = 8;
constexpr size_t kMaxValues = size_t{1} << 21;
constexpr int kMaxCount = 1 << 20;  // of ranks, cores, ...
constexpr size_t kMaxText = 1024;
constexpr size_t kShownOfValue = 40;

constexpr std::array kCollectives = {
    Collective::kAllReduce, Collective::kReduce,        Collective::kBroadcast,
    Collective::kAllGather, Collective::kReduceScatter, Collective::kAllToAll,
    Collective::kGather,    Collective::kScatter,       Collective::kBarrier,
};

[[noreturn]] void invalid(const std::string& what) {
  throw Error(ErrorCode::kInvalidArgument, what);
}

// ------------------------------------------------------------------------------------- writing

double rounded(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

std::string time_text(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

std::string line(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

template <typename Items, typename ToJson>
std::string lines(const Items& items, const ToJson& to_json) {
  std::string text = "[";
  for (size_t i = 0; i < items.size(); ++i) {
    text += (i == 0 ? "\n    " : ",\n    ") + line(to_json(items[i]));
  }
  return text + (items.empty() ? "]" : "\n  ]");
}

Json device_json(const IoDevice& device) {
  return {{"name", device.name}, {"pci", device.pci_bus_id}, {"numa_node", device.numa_node}};
}

template <typename Items, typename ToJson>
Json array(const Items& items, const ToJson& to_json) {
  Json json = Json::array();
  for (const auto& item : items) json.push_back(to_json(item));
  return json;
}

Json hardware_json(const Fabric::Hardware& hardware) {
  return {{"machine", hardware.machine},
          {"cpu", hardware.cpu},
          {"packages", hardware.packages},
          {"numa_nodes", hardware.numa_nodes},
          {"cores", hardware.cores},
          {"threads", hardware.threads},
          {"memory", hardware.memory},
          {"nics", array(hardware.nics,
                         [](const NetworkInterface& nic) {
                           return Json{{"name", nic.name},
                                       {"addresses", nic.addresses},
                                       {"megabits", nic.megabits_per_second},
                                       {"numa_node", nic.numa_node}};
                         })},
          {"rdma", array(hardware.rdma, device_json)},
          {"gpus", array(hardware.gpus, device_json)}};
}

Json host_json(const Fabric::Host& host) {
  return {{"name", host.name},
          {"rack", host.rack},
          {"cores", host.cores},
          {"egress", rounded(host.egress)},
          {"ingress", rounded(host.ingress)},
          {"key", host.key},
          {"hardware", hardware_json(host.hardware)}};
}

Json cost_json(const Fabric::Cost& cost) {
  return {{"alpha", rounded(cost.alpha)},
          {"overhead", rounded(cost.overhead)},
          {"measured", cost.measured}};
}

// ------------------------------------------------------------------------------------- reading

/// A value and where it stands. Every reading function throws where the value is another kind.
class Place {
 public:
  Place(const Json& value, std::string path) : value_(value), path_(std::move(path)) {}

  [[noreturn]] void complain(const std::string& expected) const {
    std::string shown = line(value_);
    if (shown.size() > kShownOfValue) shown = shown.substr(0, kShownOfValue) + "...";
    invalid(path_ + ": expected " + expected + ", got " + shown);
  }

  double quantity() const {
    const double number = value_.is_number() ? value_.get<double>() : -1;
    if (!std::isfinite(number) || number < 0) complain("a number of at least 0");
    return number;
  }

  int64_t whole(int64_t least, int64_t most) const {
    const bool fits = value_.is_number_integer() &&
                      !(value_.is_number_unsigned() &&
                        value_.get<uint64_t>() > uint64_t{std::numeric_limits<int64_t>::max()});
    const int64_t number = fits ? value_.get<int64_t>() : 0;
    if (!fits || number < least || number > most) {
      complain("a whole number of " + std::to_string(least) + " to " + std::to_string(most));
    }
    return number;
  }
  int count(int least) const { return static_cast<int>(whole(least, kMaxCount)); }
  int index(size_t count) const {
    return static_cast<int>(whole(0, static_cast<int64_t>(count) - 1));
  }
  /// -1: unknown.
  int numa_node() const { return static_cast<int>(whole(-1, kMaxCount)); }
  uint64_t bytes() const {
    return static_cast<uint64_t>(whole(0, std::numeric_limits<int64_t>::max()));
  }

  bool flag() const {
    if (!value_.is_boolean()) complain("true or false");
    return value_.get<bool>();
  }

  // Control characters have no place in names, and could drive the terminal that shows them.
  std::string text() const {
    std::string text = value_.is_string() ? value_.get<std::string>() : "\n";
    for (const char c : text) {
      if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) complain("a line of text");
    }
    if (text.size() > kMaxText)
      complain("a text of at most " + std::to_string(kMaxText) + " bytes");
    return text;
  }

  int64_t time() const {
    std::tm utc{};
    const std::string string = text();
    const char* end = strptime(string.c_str(), "%Y-%m-%dT%H:%M:%SZ", &utc);
    if (end == nullptr || *end != '\0') complain("a time such as \"2025-01-31T08:00:00Z\"");
    return timegm(&utc);
  }

  Collective collective() const {
    const std::string name = text();
    std::string all;
    for (const Collective collective : kCollectives) {
      if (name == to_string(collective)) return collective;
      all += (all.empty() ? "" : ", ") + std::string(to_string(collective));
    }
    complain("one of " + all);
  }

  template <typename Read>
  auto list(const Read& read) const {
    if (!value_.is_array()) complain("an array");
    std::vector<decltype(read(*this))> items;
    items.reserve(value_.size());
    for (size_t i = 0; i < value_.size(); ++i) {
      items.push_back(read(Place(value_[i], path_ + "[" + std::to_string(i) + "]")));
    }
    return items;
  }

  const Json& value() const { return value_; }
  const std::string& path() const { return path_; }

 private:
  const Json& value_;
  const std::string path_;
};

/// The fields of an object. One that nobody asked for is an error: it is misspelt.
class Fields {
 public:
  explicit Fields(const Place& place) : place_(place) {
    if (!place.value().is_object()) place.complain("an object");
  }

  Place required(const std::string& name) {
    const auto found = find(name);
    if (!found)
      invalid((place_.path().empty() ? name : place_.path() + "." + name) + " is missing");
    return *found;
  }

  /// Reads the field with `read` where it is there, and leaves `target` alone where it is not.
  template <typename Target, typename Read>
  void optional(const std::string& name, Target& target, const Read& read) {
    if (const auto found = find(name)) target = std::invoke(read, *found);
  }

  void end() const {
    for (const auto& [name, value] : place_.value().items()) {
      if (seen_.count(name) == 0) {
        invalid((place_.path().empty() ? "" : place_.path() + ": ") + "unknown field " +
                line(name.substr(0, kShownOfValue)));
      }
    }
  }

 private:
  std::optional<Place> find(const std::string& name) {
    seen_.insert(name);
    const auto it = place_.value().find(name);
    if (it == place_.value().end()) return std::nullopt;
    return Place(*it, place_.path().empty() ? name : place_.path() + "." + name);
  }

  const Place place_;
  std::set<std::string> seen_;
};

IoDevice read_device(const Place& place) {
  IoDevice device;
  Fields fields(place);
  device.name = fields.required("name").text();
  fields.optional("pci", device.pci_bus_id, &Place::text);
  fields.optional("numa_node", device.numa_node, &Place::numa_node);
  fields.end();
  return device;
}

NetworkInterface read_nic(const Place& place) {
  NetworkInterface nic;
  Fields fields(place);
  nic.up = true;
  nic.name = fields.required("name").text();
  fields.optional("addresses", nic.addresses,
                  [](const Place& p) { return p.list(std::mem_fn(&Place::text)); });
  fields.optional("megabits", nic.megabits_per_second,
                  [](const Place& p) { return static_cast<int64_t>(p.bytes()); });
  fields.optional("numa_node", nic.numa_node, &Place::numa_node);
  fields.end();
  return nic;
}

Fabric::Hardware read_hardware(const Place& place) {
  Fabric::Hardware hardware;
  const auto count = [](const Place& p) { return p.count(0); };
  const auto devices = [](const Place& p) { return p.list(read_device); };
  Fields fields(place);
  fields.optional("machine", hardware.machine, &Place::text);
  fields.optional("cpu", hardware.cpu, &Place::text);
  fields.optional("packages", hardware.packages, count);
  fields.optional("numa_nodes", hardware.numa_nodes, count);
  fields.optional("cores", hardware.cores, count);
  fields.optional("threads", hardware.threads, count);
  fields.optional("memory", hardware.memory, &Place::bytes);
  fields.optional("nics", hardware.nics, [](const Place& p) { return p.list(read_nic); });
  fields.optional("rdma", hardware.rdma, devices);
  fields.optional("gpus", hardware.gpus, devices);
  fields.end();
  return hardware;
}

Fabric::Host read_host(const Place& place, size_t racks) {
  Fabric::Host host;
  Fields fields(place);
  host.name = fields.required("name").text();
  fields.optional("rack", host.rack, [racks](const Place& p) { return p.index(racks); });
  fields.optional("cores", host.cores, [](const Place& p) { return p.count(1); });
  fields.optional("egress", host.egress, &Place::quantity);
  fields.optional("ingress", host.ingress, &Place::quantity);
  fields.optional("key", host.key, &Place::text);
  fields.optional("hardware", host.hardware, read_hardware);
  fields.end();
  return host;
}

Fabric::Rack read_rack(const Place& place) {
  Fabric::Rack rack;
  Fields fields(place);
  fields.optional("name", rack.name, &Place::text);
  fields.optional("up", rack.up, &Place::quantity);
  fields.optional("down", rack.down, &Place::quantity);
  fields.end();
  return rack;
}

Fabric::Link read_link(const Place& place, size_t hosts) {
  Fabric::Link link;
  Fields fields(place);
  link.a = fields.required("a").index(hosts);
  link.b = fields.required("b").index(hosts);
  link.rate = fields.required("rate").quantity();
  fields.optional("alpha", link.alpha, &Place::quantity);
  fields.end();
  return link;
}

Fabric::Pair read_pair(const Place& place, size_t hosts) {
  Fabric::Pair pair;
  Fields fields(place);
  pair.from = fields.required("from").index(hosts);
  pair.to = fields.required("to").index(hosts);
  fields.optional("alpha", pair.alpha, &Place::quantity);
  fields.optional("alpha_spread", pair.alpha_spread, &Place::quantity);
  fields.optional("rate", pair.rate, &Place::quantity);
  fields.optional("rate_spread", pair.rate_spread, &Place::quantity);
  fields.optional("solo", pair.solo, &Place::quantity);
  fields.end();
  return pair;
}

Fabric::CodecRate read_codec_rate(const Place& place) {
  Fabric::CodecRate codec;
  Fields fields(place);
  codec.name = fields.required("name").text();
  codec.encode = fields.required("encode").quantity();
  codec.decode = fields.required("decode").quantity();
  fields.optional("encode_sum", codec.encode_sum, &Place::quantity);
  fields.optional("select", codec.select, &Place::quantity);
  fields.end();
  return codec;
}

Fabric::Tuned read_tuned(const Place& place) {
  Fabric::Tuned tuned;
  Fields fields(place);
  tuned.collective = fields.required("collective").collective();
  tuned.ranks = fields.required("ranks").count(1);
  tuned.bytes = fields.required("bytes").bytes();
  tuned.algorithm = fields.required("algorithm").text();
  tuned.slice_bytes = fields.required("slice_bytes").bytes();
  tuned.window = fields.required("window").count(1);
  tuned.seconds = fields.required("seconds").quantity();
  fields.end();
  return tuned;
}

Fabric::Cost read_cost(const Place& place) {
  Fabric::Cost cost;
  Fields fields(place);
  cost.alpha = fields.required("alpha").quantity();
  cost.overhead = fields.required("overhead").quantity();
  fields.optional("measured", cost.measured, &Place::flag);
  fields.end();
  return cost;
}

Fabric::Provenance read_made(const Place& place) {
  Fabric::Provenance made;
  Fields fields(place);
  fields.optional("source", made.source, &Place::text);
  fields.optional("note", made.note, &Place::text);
  fields.optional("time", made.time, &Place::time);
  fields.optional("seconds", made.seconds, &Place::quantity);
  for (const auto& [name, member] : {std::pair("q7x2", &Fabric::Provenance::q7x2),
                                     {"ucx", &Fabric::Provenance::ucx},
                                     {"torch", &Fabric::Provenance::torch},
                                     {"driver", &Fabric::Provenance::driver},
                                     {"kernel", &Fabric::Provenance::kernel}}) {
    fields.optional(name, made.*member, &Place::text);
  }
  fields.end();
  return made;
}

Json parsed(std::string_view text) {
  if (text.size() > kMaxFabricBytes) {
    invalid("expected at most " + std::to_string(kMaxFabricBytes) + " bytes of JSON, got " +
            std::to_string(text.size()));
  }
  size_t values = 0;
  const auto bounded = [&values](int depth, Json::parse_event_t, const Json&) {
    if (depth > kMaxDepth) {
      invalid("values nest deeper than " + std::to_string(kMaxDepth) + " levels");
    }
    if (++values > kMaxValues) {
      invalid("more than " + std::to_string(kMaxValues) + " values");
    }
    return true;
  };
  try {
    return Json::parse(text, bounded);
  } catch (const Json::exception& error) {
    invalid(std::string("not JSON: ") + error.what());
  }
}

}  // namespace

std::string to_json(const Fabric& fabric) {
  const Fabric::Provenance& made = fabric.made;
  const Json provenance{{"source", made.source},
                        {"note", made.note},
                        {"time", time_text(made.time)},
                        {"seconds", rounded(made.seconds)},
                        {"q7x2", made.q7x2},
                        {"ucx", made.ucx},
                        {"torch", made.torch},
                        {"driver", made.driver},
                        {"kernel", made.kernel}};
  std::string text = "{\n  \"q7x2_fabric\": " + std::to_string(kFormat);
  const auto add = [&text](const char* name, const std::string& value) {
    text += std::string(",\n  \"") + name + "\": " + value;
  };
  add("made", line(provenance));
  add("ranks", line(fabric.host_of));
  add("hosts", lines(fabric.hosts, host_json));
  add("racks", lines(fabric.racks, [](const Fabric::Rack& rack) {
        return Json{{"name", rack.name}, {"up", rounded(rack.up)}, {"down", rounded(rack.down)}};
      }));
  add("links", lines(fabric.links, [](const Fabric::Link& link) {
        return Json{{"a", link.a},
                    {"b", link.b},
                    {"rate", rounded(link.rate)},
                    {"alpha", rounded(link.alpha)}};
      }));
  add("memory", line(cost_json(fabric.memory)));
  add("network", line(cost_json(fabric.network)));
  add("copy_rate", line(rounded(fabric.copy_rate)));
  add("reduce_rate", line(rounded(fabric.reduce_rate)));
  add("codecs", lines(fabric.codecs, [](const Fabric::CodecRate& codec) {
        Json json{{"name", codec.name},
                  {"encode", rounded(codec.encode)},
                  {"decode", rounded(codec.decode)}};
        if (codec.encode_sum > 0) json["encode_sum"] = rounded(codec.encode_sum);
        if (codec.select > 0) json["select"] = rounded(codec.select);
        return json;
      }));
  add("pairs", lines(fabric.pairs, [](const Fabric::Pair& pair) {
        return Json{{"from", pair.from},
                    {"to", pair.to},
                    {"alpha", rounded(pair.alpha)},
                    {"alpha_spread", rounded(pair.alpha_spread)},
                    {"rate", rounded(pair.rate)},
                    {"rate_spread", rounded(pair.rate_spread)},
                    {"solo", rounded(pair.solo)}};
      }));
  add("tuned", lines(fabric.tuned, [](const Fabric::Tuned& tuned) {
        return Json{{"collective", to_string(tuned.collective)},
                    {"ranks", tuned.ranks},
                    {"bytes", tuned.bytes},
                    {"algorithm", tuned.algorithm},
                    {"slice_bytes", tuned.slice_bytes},
                    {"window", tuned.window},
                    {"seconds", rounded(tuned.seconds)}};
      }));
  return text + "\n}\n";
}

Fabric fabric_from_json(std::string_view text) {
  const Json json = parsed(text);
  Fields fields(Place(json, ""));
  fields.required("q7x2_fabric").whole(kFormat, kFormat);

  Fabric fabric;
  fabric.racks.emplace_back();
  fields.optional("made", fabric.made, read_made);
  fields.optional("racks", fabric.racks, [](const Place& p) { return p.list(read_rack); });
  fabric.hosts = fields.required("hosts").list(
      [&](const Place& p) { return read_host(p, fabric.racks.size()); });
  fabric.host_of =
      fields.required("ranks").list([&](const Place& p) { return p.index(fabric.hosts.size()); });
  fields.optional("links", fabric.links, [&](const Place& p) {
    return p.list([&](const Place& item) { return read_link(item, fabric.hosts.size()); });
  });
  fields.optional("memory", fabric.memory, read_cost);
  fields.optional("network", fabric.network, read_cost);
  fields.optional("copy_rate", fabric.copy_rate, &Place::quantity);
  fields.optional("reduce_rate", fabric.reduce_rate, &Place::quantity);
  fields.optional("codecs", fabric.codecs, [](const Place& p) { return p.list(read_codec_rate); });
  fields.optional("pairs", fabric.pairs, [&](const Place& p) {
    return p.list([&](const Place& item) { return read_pair(item, fabric.hosts.size()); });
  });
  fields.optional("tuned", fabric.tuned, [](const Place& p) { return p.list(read_tuned); });
  fields.end();
  fabric.validate();
  return fabric;
}

std::string hardware_to_json(const Fabric::Hardware& hardware) {
  return line(hardware_json(hardware));
}

Fabric::Hardware hardware_from_json(std::string_view text) {
  const Json json = parsed(text);
  return read_hardware(Place(json, "hardware"));
}

}  // namespace q7x2
