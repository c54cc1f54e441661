#include "fabric/json.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "fabric/json_fields.h"

namespace q7x2 {
namespace {

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

Json codec_json(const Fabric::CodecRate& codec) {
  Json json{
      {"name", codec.name}, {"encode", rounded(codec.encode)}, {"decode", rounded(codec.decode)}};
  if (codec.encode_sum > 0) json["encode_sum"] = rounded(codec.encode_sum);
  if (codec.select > 0) json["select"] = rounded(codec.select);
  return json;
}

Json rates_json(const Fabric::Rates& rates) {
  return {{"device", rates.device},
          {"copy", rounded(rates.copy)},
          {"reduce", rounded(rates.reduce)},
          {"codecs", array(rates.codecs, codec_json)}};
}

Json binding_json(const Fabric::Binding& binding) {
  return {{"numa_node", binding.numa_node}, {"cpus", binding.cpus}};
}

Json host_json(const Fabric::Host& host) {
  Json json{{"name", host.name},
            {"rack", host.rack},
            {"cores", host.cores},
            {"egress", rounded(host.egress)},
            {"ingress", rounded(host.ingress)},
            {"key", host.key},
            {"hardware", hardware_json(host.hardware)}};
  if (!host.rates.empty()) json["rates"] = array(host.rates, rates_json);
  return json;
}

Json cost_json(const Fabric::Cost& cost) {
  return {{"alpha", rounded(cost.alpha)},
          {"overhead", rounded(cost.overhead)},
          {"measured", cost.measured}};
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
  std::string text = "{\n  \"q7x2_fabric\": " + std::to_string(kFabricFormat);
  const auto add = [&text](const char* name, const std::string& value) {
    text += std::string(",\n  \"") + name + "\": " + value;
  };
  add("made", line(provenance));
  add("ranks", line(fabric.host_of));
  if (!fabric.bindings.empty()) add("bindings", lines(fabric.bindings, binding_json));
  add("hosts", lines(fabric.hosts, host_json));
  if (!fabric.servers.empty()) add("servers", lines(fabric.servers, host_json));
  add("racks", lines(fabric.racks, [](const Fabric::Rack& rack) {
        return Json{{"name", rack.name},
                    {"up", rounded(rack.up)},
                    {"down", rounded(rack.down)},
                    {"alpha", rounded(rack.alpha)}};
      }));
  add("links", lines(fabric.links, [](const Fabric::Link& link) {
        return Json{{"a", link.a},
                    {"b", link.b},
                    {"rate", rounded(link.rate)},
                    {"alpha", rounded(link.alpha)}};
      }));
  add("memory", line(cost_json(fabric.memory)));
  const Fabric::Interconnect& interconnect = fabric.interconnect;
  add("interconnect", line({{"alpha_factor", rounded(interconnect.alpha_factor)},
                            {"rate", rounded(interconnect.rate)},
                            {"measured", interconnect.measured}}));
  const Fabric::DeviceMemory& devices = fabric.devices;
  add("devices", line({{"alpha", rounded(devices.alpha)},
                       {"overhead", rounded(devices.overhead)},
                       {"rate", rounded(devices.rate)},
                       {"reduce_rate", rounded(devices.reduce_rate)}}));
  add("network", line(cost_json(fabric.network)));
  add("burst", line(rounded(fabric.burst)));
  add("copy_rate", line(rounded(fabric.copy_rate)));
  add("reduce_rate", line(rounded(fabric.reduce_rate)));
  add("codecs", lines(fabric.codecs, codec_json));
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

std::string to_json(const HostDescription& description) {
  return line({{"cores", description.cores},
               {"hardware", hardware_json(description.hardware)},
               {"rates", rates_json(description.rates)}});
}

std::string to_json(const Fabric::Binding& binding) {
  return line(binding_json(binding));
}

}  // namespace q7x2
