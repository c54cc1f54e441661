#include "fabric/json.h"
#include "fabric/json_fields.h"

namespace q7x2 {
namespace {

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

Fabric::Rates read_rates(const Place& place) {
  Fabric::Rates rates;
  Fields fields(place);
  fields.optional("device", rates.device, &Place::text);
  fields.optional("copy", rates.copy, &Place::quantity);
  fields.optional("reduce", rates.reduce, &Place::quantity);
  fields.optional("codecs", rates.codecs, [](const Place& p) { return p.list(read_codec_rate); });
  fields.end();
  return rates;
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
  fields.optional("rates", host.rates, [](const Place& p) { return p.list(read_rates); });
  fields.end();
  return host;
}

Fabric::Rack read_rack(const Place& place) {
  Fabric::Rack rack;
  Fields fields(place);
  fields.optional("name", rack.name, &Place::text);
  fields.optional("up", rack.up, &Place::quantity);
  fields.optional("down", rack.down, &Place::quantity);
  fields.optional("alpha", rack.alpha, &Place::quantity);
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

Fabric::Interconnect read_interconnect(const Place& place) {
  Fabric::Interconnect interconnect;
  Fields fields(place);
  fields.optional("alpha_factor", interconnect.alpha_factor, &Place::quantity);
  fields.optional("rate", interconnect.rate, &Place::quantity);
  fields.optional("measured", interconnect.measured, &Place::flag);
  fields.end();
  return interconnect;
}

Fabric::DeviceMemory read_devices(const Place& place) {
  Fabric::DeviceMemory devices;
  Fields fields(place);
  fields.optional("alpha", devices.alpha, &Place::quantity);
  fields.optional("overhead", devices.overhead, &Place::quantity);
  fields.optional("rate", devices.rate, &Place::quantity);
  fields.optional("reduce_rate", devices.reduce_rate, &Place::quantity);
  fields.end();
  return devices;
}

Fabric::Binding read_binding(const Place& place) {
  Fabric::Binding binding;
  Fields fields(place);
  fields.optional("numa_node", binding.numa_node, &Place::numa_node);
  fields.optional("cpus", binding.cpus, &Place::text);
  fields.end();
  return binding;
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

}  // namespace

Fabric fabric_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxFabricBytes);
  Fields fields(Place(json, ""));
  fields.required("q7x2_fabric").whole(kFabricFormat, kFabricFormat);

  Fabric fabric;
  fabric.racks.emplace_back();
  fields.optional("made", fabric.made, read_made);
  fields.optional("racks", fabric.racks, [](const Place& p) { return p.list(read_rack); });
  fabric.hosts = fields.required("hosts").list(
      [&](const Place& p) { return read_host(p, fabric.racks.size()); });
  fabric.host_of =
      fields.required("ranks").list([&](const Place& p) { return p.index(fabric.hosts.size()); });
  fields.optional("bindings", fabric.bindings, [](const Place& p) { return p.list(read_binding); });
  fields.optional("servers", fabric.servers, [&](const Place& p) {
    return p.list([&](const Place& item) { return read_host(item, fabric.racks.size()); });
  });
  fields.optional("links", fabric.links, [&](const Place& p) {
    return p.list([&](const Place& item) { return read_link(item, fabric.hosts.size()); });
  });
  fields.optional("memory", fabric.memory, read_cost);
  fields.optional("interconnect", fabric.interconnect, read_interconnect);
  fields.optional("devices", fabric.devices, read_devices);
  fields.optional("network", fabric.network, read_cost);
  fields.optional("burst", fabric.burst, &Place::quantity);
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

HostDescription description_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxDescriptionBytes);
  HostDescription description;
  Fields fields(Place(json, ""));
  description.cores = fields.required("cores").count(1);
  description.hardware = read_hardware(fields.required("hardware"));
  description.rates = read_rates(fields.required("rates"));
  fields.end();
  return description;
}

Fabric::Binding binding_from_json(std::string_view text) {
  const Json json = parsed_json(text, kMaxDescriptionBytes);
  return read_binding(Place(json, "binding"));
}

}  // namespace q7x2
