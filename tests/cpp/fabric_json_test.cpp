// The Fabric's JSON: what is written is read, and what others wrote is read or refused, with words.
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "fabric/json.h"

namespace q7x2 {
namespace {

Fabric full() {
  Fabric fabric = Fabric::uniform(3, 2, 1.25e8);
  fabric.made = {.source = "probe",
                 .note = "",
                 .time = 1'700'000'000,
                 .seconds = 0.123,
                 .q7x2 = "0.1.0",
                 .ucx = "1.22.0",
                 .torch = "2.13.0",
                 .driver = "",
                 .kernel = "6.1.0"};
  fabric.racks = {{"r0", 6.25e6, 6.25e6}, {"r1", 6.25e6, 6.25e6}};
  fabric.hosts[2].rack = 1;
  fabric.hosts[0].key = "4b7c/ipc:1/pid:2";
  fabric.hosts[0].hardware = {.machine = "4b7c/cpus:0,1",
                              .cpu = "Some CPU \"3000\"",
                              .packages = 2,
                              .numa_nodes = 2,
                              .cores = 8,
                              .threads = 16,
                              .memory = uint64_t{1} << 36,
                              .nics = {{"eth0", {"10.0.0.1", "fe80::1"}, true, false, 1000, 1}},
                              .rdma = {{"mlx5_0", "0000:3b:00.0", 0}},
                              .gpus = {{"GPU", "0000:01:00.0", -1}}};
  fabric.servers = {{.name = "s0", .key = "5a", .cores = 4, .rack = 1, .egress = 1.25e9}};
  fabric.links = {{0, 2, 1.25e7, 2e-5}};
  fabric.pairs = {{0, 1, 3e-5, 0.1, 1.2e8, 0.05, 1.22e8}, {1, 0, 3e-5, 0.1, 1.2e8, 0.05, 0, 3e6}};
  fabric.tuned = {{Collective::kAllGather, 6, 1 << 20, "ring", 65536, 4, 1.5e-3}};
  fabric.network = {4e-5, 2e-6, true};
  fabric.burst = 131072;
  fabric.interconnect = {1.5, 3e10, true};
  fabric.devices = {2e-5, 3e-6, 4e10, 5e11};
  fabric.codecs = {{"int8", 1e9, 2e9}, {"topk:0.1", 1e9, 2e9, 3e9, 4e9}};
  fabric.hosts[1].rates = {{"cpu", 5e9, 0, {{"int8", 5e8, 1e9}}}, {"cuda", 1e12, 1e12, {}}};
  for (int rank = 0; rank < 6; ++rank) fabric.bindings.push_back({rank % 2 - 1, "0-3,8"});
  return fabric;
}

std::string refusal(const std::string& text) {
  try {
    fabric_from_json(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

/// The text of a good Fabric with one part of it replaced.
std::string with(const std::string& part, const std::string& replacement) {
  std::string text = to_json(full());
  const size_t at = text.find(part);
  EXPECT_NE(at, std::string::npos) << part << " is not in\n" << text;
  return text.replace(at, part.size(), replacement);
}

TEST(FabricJson, WhatIsWrittenIsRead) {
  const std::string text = to_json(full());
  const Fabric read = fabric_from_json(text);
  EXPECT_EQ(to_json(read), text);
  EXPECT_EQ(read.host_of, full().host_of);
  EXPECT_EQ(read.made.time, 1'700'000'000);
  EXPECT_EQ(read.hosts[0].hardware.nics.at(0).addresses.at(1), "fe80::1");
  EXPECT_EQ(read.hosts[0].hardware.machine, "4b7c/cpus:0,1");
  EXPECT_EQ(read.hosts[0].hardware.cpu, "Some CPU \"3000\"");
  EXPECT_EQ(read.tuned.at(0).collective, Collective::kAllGather);
  EXPECT_DOUBLE_EQ(read.racks[1].up, 6.25e6);
  EXPECT_EQ(read.servers.at(0).rack, 1);
  EXPECT_EQ(read.bindings, full().bindings);
  EXPECT_EQ(read.interconnect.alpha_factor, 1.5);
  EXPECT_TRUE(read.interconnect.measured);
  EXPECT_EQ(read.devices.alpha, 2e-5);
  EXPECT_EQ(read.devices.overhead, 3e-6);
  EXPECT_EQ(read.devices.rate, 4e10);
  EXPECT_EQ(read.devices.reduce_rate, 5e11);
  EXPECT_EQ(read.host_codec_rate(1, "int8")->encode, 5e8);
  EXPECT_EQ(read.copy_rate_of(2), 5e9);
  EXPECT_EQ(read.copy_rate_of(2, "cuda"), 1e12);
  EXPECT_TRUE(read.network.measured);
  EXPECT_FALSE(read.memory.measured);
  EXPECT_EQ(read.pairs[1].window, 3e6);
  EXPECT_EQ(read.pairs[0].window, 0) << "a field that files of earlier versions do not have";
}

TEST(FabricJson, FiguresHaveFourDigits) {
  Fabric fabric = full();
  fabric.hosts[0].egress = 119'612'345.678;
  EXPECT_DOUBLE_EQ(fabric_from_json(to_json(fabric)).hosts[0].egress, 1.196e8);
}

TEST(FabricJson, AHostIsOneLine) {
  const std::string text = to_json(full());
  const size_t at = text.find("\"name\":\"h1\"");
  ASSERT_NE(at, std::string::npos);
  const std::string host = text.substr(at, text.find('\n', at) - at);
  EXPECT_NE(host.find("\"hardware\""), std::string::npos) << text;
}

TEST(FabricJson, LittleIsRequired) {
  const Fabric fabric =
      fabric_from_json(R"({"q7x2_fabric": 1, "hosts": [{"name": "a"}], "ranks": [0, 0]})");
  EXPECT_EQ(fabric.world_size(), 2);
  EXPECT_EQ(fabric.racks.size(), 1U);
  EXPECT_EQ(fabric.hosts[0].egress, 0);
}

TEST(FabricJson, ARefusalNamesThePlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "not JSON"},
      {"[]", "expected an object, got []"},
      {"{}", "q7x2_fabric is missing"},
      {with("\"q7x2_fabric\": 1", "\"q7x2_fabric\": 2"),
       "q7x2_fabric: expected a whole number of 1 to 1, got 2"},
      {with("\"egress\":125000000.0", "\"egress\":-1"),
       "hosts[0].egress: expected a number of at least 0, got -1"},
      {with("\"egress\":125000000.0", "\"egress\":\"fast\""),
       "hosts[0].egress: expected a number of at least 0, got \"fast\""},
      {with("\"egress\":125000000.0", "\"egress\":NaN"), "not JSON"},
      {with("\"egress\":125000000.0", "\"egress\":1e999"), "not JSON"},
      {with("\"rack\":1", "\"rack\":2"), "hosts[2].rack: expected a whole number of 0 to 1, got 2"},
      {with("\"cores\":2", "\"cores\":0"), "hosts[0].cores: expected a whole number of 1 to"},
      {with("\"name\":\"h1\"", "\"name\":\"\\u001b[2J\""),
       "hosts[1].name: expected a line of text"},
      {with("[0,0,1,1,2,2]", "[0,0,1,1,1000000000]"),
       "ranks[4]: expected a whole number of 0 to 2, got 1000000000"},
      {with("[0,0,1,1,2,2]", "[0,0,1,1]"), "host 2 has no rank"},
      {with("[0,0,1,1,2,2]", "[]"), "no ranks"},
      {with("\"name\":\"s0\",\"rack\":1", "\"name\":\"s0\",\"rack\":2"),
       "servers[0].rack: expected a whole number of 0 to 1, got 2"},
      {with("\"egress\":", "\"egres\":"), "hosts[0]: unknown field \"egres\""},
      {with("\"a\":0,\"b\":2", "\"a\":2,\"b\":2"), "link 0 joins a host with itself"},
      {with("\"a\":0,\"b\":2", "\"a\":0,\"b\":18446744073709551615"), "links[0].b: expected"},
      {with("\"all_gather\"", "\"all_getter\""), "tuned[0].collective: expected one of all_reduce"},
      {with("2023-11-14T22:13:20Z", "yesterday"), "made.time: expected a time such as"},
      {with("\"measured\":true", "\"measured\":1"),
       "interconnect.measured: expected true or false"},
      {with("\"rate\":40000000000.0", "\"rate\":-1.0"), "devices.rate: expected"},
      {with("{\"numa_node\":-1,\"cpus\":\"0-3,8\"},", ""), "5 bindings for 6 ranks"},
      {with("\"numa_node\":-1,\"cpus\"", "\"numa_node\":-2,\"cpus\""),
       "bindings[0].numa_node: expected a whole number of -1 to"},
      {with("\"copy\":", "\"copi\":"), "hosts[1].rates[0]: unknown field \"copi\""},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(refusal(text).find(expected), std::string::npos)
        << "expected: " << expected << "\ngot: " << refusal(text);
  }
}

// Whichever value a reader takes, its writer may have meant the other one.
TEST(FabricJson, AFieldOfAnotherKindIsBlamedItself) {
  const nlohmann::ordered_json whole = nlohmann::ordered_json::parse(to_json(full()));
  for (const auto& [name, value] : whole.items()) {
    for (const nlohmann::ordered_json& other :
         {nlohmann::ordered_json(true), nlohmann::ordered_json(-1), nlohmann::ordered_json("no")}) {
      nlohmann::ordered_json changed = whole;
      changed[name] = other;
      const std::string said = refusal(changed.dump());
      EXPECT_EQ(said.rfind(name + ": expected ", 0), 0U) << name << ": " << other << ": " << said;
    }
  }
  for (const std::string name : {"q7x2_fabric", "ranks", "hosts"}) {
    nlohmann::ordered_json without = whole;
    without.erase(name);
    EXPECT_EQ(refusal(without.dump()), name + " is missing");
  }
}

TEST(FabricJson, AFieldThatIsNamedTwiceIsRefused) {
  const std::string text = to_json(full());
  size_t fields = 0;
  for (size_t colon = text.find("\":"); colon != std::string::npos;
       colon = text.find("\":", colon + 1)) {
    const size_t quote = text.rfind('"', colon - 1);
    if (text.compare(quote, 4, "\"ipc") == 0) continue;  // inside a text
    const std::string name = text.substr(quote, colon - quote + 1);
    if (name.find('/') != std::string::npos) continue;
    std::string twice = text;
    twice.insert(quote, name + ": 0, ");
    const std::string said = refusal(twice);
    EXPECT_NE(said.find(name.substr(1, name.size() - 2) + ": the field is named twice"),
              std::string::npos)
        << name << ": " << said;
    ++fields;
  }
  EXPECT_GT(fields, 100U);
  EXPECT_EQ(refusal(with("{\"name\":\"h1\"", "{\"name\":\"h0\",\"name\":\"h1\"")),
            "hosts[1].name: the field is named twice");
  EXPECT_NE(refusal(R"({"a\nb": 1, "a\u000ab": 2})").find("a\\nb: the field"), std::string::npos)
      << "names are compared as they are meant, and shown without control characters";
  EXPECT_THROW(description_from_json(R"({"cores": 1, "cores": 2})"), Error);
  EXPECT_THROW(binding_from_json(R"({"cpus": "0", "cpus": "1"})"), Error);
}

TEST(FabricJson, HostileTextsAreBounded) {
  EXPECT_NE(refusal(std::string(kMaxFabricBytes + 1, ' ')).find("at most"), std::string::npos);
  EXPECT_NE(refusal(std::string(1 << 20, '[')).find("nest deeper"), std::string::npos);
  std::string many = "{\"q7x2_fabric\": 1, \"hosts\": [0";
  while (many.size() < kMaxFabricBytes - 8) many += ",0";
  EXPECT_NE(refusal(many + "]}").find("values"), std::string::npos);
  EXPECT_NE(refusal(with("h1", std::string(5000, 'x'))).find("hosts[1].name"), std::string::npos);
}

// Whatever bytes a text has: a Fabric that can be written again, or an Error.
TEST(FabricJson, MutationsAreReadOrRefused) {
  const std::string good = to_json(full());
  const std::vector<std::string> words = {"-1",  "1e308", "null", "[]",     "{}", "\"x\"", "true",
                                          "1e9", "0",     ",",    "\"a\":", "[",  "}",     "\xff"};
  std::mt19937_64 random(7);
  const auto below = [&random](size_t limit) { return static_cast<size_t>(random() % limit); };
  int accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text = good;
    for (size_t change = 0; change <= below(3); ++change) {
      const size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, below(20));
          break;
        case 2:
          text.insert(at, words[below(words.size())]);
          break;
        default:
          text.replace(at, below(8), words[below(words.size())]);
      }
    }
    try {
      const std::string again = to_json(fabric_from_json(text));
      EXPECT_EQ(to_json(fabric_from_json(again)), again);
      ++accepted;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
    }
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace q7x2
