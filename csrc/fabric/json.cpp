#include "fabric/json.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "fabric/json_object.h"

namespace q7x2 {

Json Quantity::write(double value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

Json Time::write(int64_t value) {
  const auto time = static_cast<std::time_t>(value);
  std::tm utc{};
  gmtime_r(&time, &utc);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return std::string(text.data());
}

// ---- the fields, in the order in which they are written

template <typename F>
void describe(F& fields, typename F::template Of<IoDevice> device) {
  fields.add("name", kRequired, device.name, Text{});
  fields.add("pci", kOptional, device.pci_bus_id, Text{});
  fields.add("numa_node", kOptional, device.numa_node, NumaNode{});
}

template <typename F>
void describe(F& fields, typename F::template Of<NetworkInterface> nic) {
  fields.add("name", kRequired, nic.name, Text{});
  fields.add("addresses", kOptional, nic.addresses, List<Text>{});
  fields.add("megabits", kOptional, nic.megabits_per_second, Megabits{});
  fields.add("numa_node", kOptional, nic.numa_node, NumaNode{});
  if constexpr (F::kReads) nic.up = true;  // others are not written
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Hardware> hardware) {
  fields.add("machine", kOptional, hardware.machine, Text{});
  fields.add("cpu", kOptional, hardware.cpu, Text{});
  fields.add("packages", kOptional, hardware.packages, Count{});
  fields.add("numa_nodes", kOptional, hardware.numa_nodes, Count{});
  fields.add("cores", kOptional, hardware.cores, Count{});
  fields.add("threads", kOptional, hardware.threads, Count{});
  fields.add("memory", kOptional, hardware.memory, Bytes{});
  fields.add("nics", kOptional, hardware.nics, List<Object<NetworkInterface>>{});
  fields.add("rdma", kOptional, hardware.rdma, List<Object<IoDevice>>{});
  fields.add("gpus", kOptional, hardware.gpus, List<Object<IoDevice>>{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::CodecRate> codec) {
  fields.add("name", kRequired, codec.name, Text{});
  fields.add("encode", kRequired, codec.encode, Quantity{});
  fields.add("decode", kRequired, codec.decode, Quantity{});
  fields.add("encode_sum", kUnlessEmpty, codec.encode_sum, Quantity{});
  fields.add("select", kUnlessEmpty, codec.select, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Rates> rates) {
  fields.add("device", kOptional, rates.device, Text{});
  fields.add("copy", kOptional, rates.copy, Quantity{});
  fields.add("reduce", kOptional, rates.reduce, Quantity{});
  fields.add("codecs", kOptional, rates.codecs, List<Object<Fabric::CodecRate>>{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Host> host) {
  fields.add("name", kRequired, host.name, Text{});
  fields.add("rack", kOptional, host.rack, Index{fields.bounds().racks});
  fields.add("cores", kOptional, host.cores, Count{1});
  fields.add("egress", kOptional, host.egress, Quantity{});
  fields.add("ingress", kOptional, host.ingress, Quantity{});
  fields.add("key", kOptional, host.key, Text{});
  fields.add("hardware", kOptional, host.hardware, Object<Fabric::Hardware>{});
  fields.add("rates", kUnlessEmpty, host.rates, List<Object<Fabric::Rates>>{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Binding> binding) {
  fields.add("numa_node", kOptional, binding.numa_node, NumaNode{});
  fields.add("cpus", kOptional, binding.cpus, Text{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Rack> rack) {
  fields.add("name", kOptional, rack.name, Text{});
  fields.add("up", kOptional, rack.up, Quantity{});
  fields.add("down", kOptional, rack.down, Quantity{});
  fields.add("alpha", kOptional, rack.alpha, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Link> link) {
  fields.add("a", kRequired, link.a, Index{fields.bounds().hosts});
  fields.add("b", kRequired, link.b, Index{fields.bounds().hosts});
  fields.add("rate", kRequired, link.rate, Quantity{});
  fields.add("alpha", kOptional, link.alpha, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Cost> cost) {
  fields.add("alpha", kRequired, cost.alpha, Quantity{});
  fields.add("overhead", kRequired, cost.overhead, Quantity{});
  fields.add("measured", kOptional, cost.measured, Flag{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Interconnect> interconnect) {
  fields.add("alpha_factor", kOptional, interconnect.alpha_factor, Quantity{});
  fields.add("rate", kOptional, interconnect.rate, Quantity{});
  fields.add("measured", kOptional, interconnect.measured, Flag{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::DeviceMemory> devices) {
  fields.add("alpha", kOptional, devices.alpha, Quantity{});
  fields.add("overhead", kOptional, devices.overhead, Quantity{});
  fields.add("rate", kOptional, devices.rate, Quantity{});
  fields.add("reduce_rate", kOptional, devices.reduce_rate, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Pair> pair) {
  fields.add("from", kRequired, pair.from, Index{fields.bounds().hosts});
  fields.add("to", kRequired, pair.to, Index{fields.bounds().hosts});
  fields.add("alpha", kOptional, pair.alpha, Quantity{});
  fields.add("alpha_spread", kOptional, pair.alpha_spread, Quantity{});
  fields.add("rate", kOptional, pair.rate, Quantity{});
  fields.add("rate_spread", kOptional, pair.rate_spread, Quantity{});
  fields.add("solo", kOptional, pair.solo, Quantity{});
  fields.add("window", kUnlessEmpty, pair.window, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Tuned> tuned) {
  fields.add("collective", kRequired, tuned.collective, CollectiveName{});
  fields.add("ranks", kRequired, tuned.ranks, Count{1});
  fields.add("bytes", kRequired, tuned.bytes, Bytes{});
  fields.add("algorithm", kRequired, tuned.algorithm, Text{});
  fields.add("slice_bytes", kRequired, tuned.slice_bytes, Bytes{});
  fields.add("window", kRequired, tuned.window, Count{1});
  fields.add("seconds", kRequired, tuned.seconds, Quantity{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric::Provenance> made) {
  fields.add("source", kOptional, made.source, Text{});
  fields.add("note", kOptional, made.note, Text{});
  fields.add("time", kOptional, made.time, Time{});
  fields.add("seconds", kOptional, made.seconds, Quantity{});
  fields.add("q7x2", kOptional, made.q7x2, Text{});
  fields.add("ucx", kOptional, made.ucx, Text{});
  fields.add("torch", kOptional, made.torch, Text{});
  fields.add("driver", kOptional, made.driver, Text{});
  fields.add("kernel", kOptional, made.kernel, Text{});
}

template <typename F>
void describe(F& fields, typename F::template Of<HostDescription> host) {
  fields.add("cores", kRequired, host.cores, Count{1});
  fields.add("hardware", kRequired, host.hardware, Object<Fabric::Hardware>{});
  fields.add("rates", kRequired, host.rates, Object<Fabric::Rates>{});
}

template <typename F>
void describe(F& fields, typename F::template Of<Fabric> fabric) {
  const FabricBounds bounds = fields.bounds();
  fields.add("made", kOptional, fabric.made, Object<Fabric::Provenance>{});
  fields.add("ranks", kRequired, fabric.host_of, List<Index>{{bounds.hosts}});
  fields.add("bindings", kUnlessEmpty, fabric.bindings, List<Object<Fabric::Binding>>{});
  fields.add("hosts", kRequired, fabric.hosts, List<Object<Fabric::Host>>{{bounds}});
  fields.add("servers", kUnlessEmpty, fabric.servers, List<Object<Fabric::Host>>{{bounds}});
  fields.add("racks", kOptional, fabric.racks, List<Object<Fabric::Rack>>{});
  fields.add("links", kOptional, fabric.links, List<Object<Fabric::Link>>{{bounds}});
  fields.add("memory", kOptional, fabric.memory, Object<Fabric::Cost>{});
  fields.add("interconnect", kOptional, fabric.interconnect, Object<Fabric::Interconnect>{});
  fields.add("devices", kOptional, fabric.devices, Object<Fabric::DeviceMemory>{});
  fields.add("network", kOptional, fabric.network, Object<Fabric::Cost>{});
  fields.add("burst", kOptional, fabric.burst, Quantity{});
  fields.add("copy_rate", kOptional, fabric.copy_rate, Quantity{});
  fields.add("reduce_rate", kOptional, fabric.reduce_rate, Quantity{});
  fields.add("codecs", kOptional, fabric.codecs, List<Object<Fabric::CodecRate>>{});
  fields.add("pairs", kOptional, fabric.pairs, List<Object<Fabric::Pair>>{{bounds}});
  fields.add("tuned", kOptional, fabric.tuned, List<Object<Fabric::Tuned>>{});
}

// ---- texts

namespace {

constexpr const char* kFormatField = "q7x2_fabric";

/// Writes a Fabric: a field on a line, and of lists of hosts, racks, ... an item on a line.
class FabricWriter {
 public:
  static constexpr bool kReads = false;
  template <typename T>
  using Of = const T&;

  FabricBounds bounds() const { return {}; }

  template <typename T, typename Kind>
  void add(const char* name, Need need, const T& value, const Kind& kind) {
    if (is_written(need, value)) append(name, line(kind.write(value)));
  }
  template <typename T>
  void add(const char* name, Need need, const std::vector<T>& items, const List<Object<T>>& kind) {
    if (!is_written(need, items)) return;
    std::string text = "[";
    for (size_t i = 0; i < items.size(); ++i) {
      text += (i == 0 ? "\n    " : ",\n    ") + line(kind.kind.write(items[i]));
    }
    append(name, text + (items.empty() ? "]" : "\n  ]"));
  }

  std::string text() const { return text_ + "\n}\n"; }

 private:
  void append(const char* name, const std::string& value) {
    text_ += std::string(",\n  \"") + name + "\": " + value;
  }

  std::string text_ =
      std::string("{\n  \"") + kFormatField + "\": " + std::to_string(kFabricFormat);
};

struct Format {
  static int read(const Place& place) {
    return static_cast<int>(place.whole(kFabricFormat, kFabricFormat));
  }
};

/// The front of a text: its format, and how many there are of what indices refer to. All that
/// follows is read with it.
FabricBounds bounds_of(const Place& text, size_t default_racks) {
  Fields fields(text);
  Format::read(fields.required(kFormatField));
  const auto length = [](const Place& list) {
    return list.list([](const Place&) { return 0; }).size();
  };
  FabricBounds bounds{.racks = default_racks, .hosts = length(fields.required("hosts"))};
  fields.optional("racks", bounds.racks, length);
  return bounds;
}

}  // namespace

std::string to_json(const Fabric& fabric) {
  FabricWriter writer;
  describe(writer, fabric);
  return writer.text();
}

Fabric fabric_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxFabricBytes);
  Fabric fabric;
  fabric.racks.emplace_back();
  const Place whole(json, "");
  JsonReader reader(whole, bounds_of(whole, fabric.racks.size()));
  int format = 0;
  reader.add(kFormatField, kRequired, format, Format{});
  describe(reader, fabric);
  reader.end();
  fabric.validate();
  return fabric;
}

std::string to_json(const HostDescription& description) {
  return line(Object<HostDescription>{}.write(description));
}

HostDescription description_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxDescriptionBytes);
  return Object<HostDescription>{}.read(Place(json, ""));
}

std::string to_json(const Fabric::Binding& binding) {
  return line(Object<Fabric::Binding>{}.write(binding));
}

Fabric::Binding binding_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxDescriptionBytes);
  return Object<Fabric::Binding>{}.read(Place(json, "binding"));
}

}  // namespace q7x2
