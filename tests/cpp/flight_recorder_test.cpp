#include "ledger/flight_recorder.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include <gtest/gtest.h>

#include "base/error.h"
#include "comm.h"
#include "ledger/dump_writer.h"
#include "ledger/flight_json.h"
#include "ledger/flight_settings.h"
#include "ranks.h"

namespace q7x2 {
namespace {

using test::buffer;
using test::Comm;
using test::Rank;
using test::run_ranks;
using Json = nlohmann::json;
using Kind = FlightRecord::Kind;
using State = FlightRecord::State;
using std::chrono::milliseconds;

/// A directory that goes with the test.
class Directory {
 public:
  Directory() {
    std::string name = std::filesystem::temp_directory_path() / "q7x2-dumps-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Directory() { std::filesystem::remove_all(path_); }

  std::string path() const { return path_; }
  std::vector<Json> dumps() const {
    std::vector<Json> found;
    for (const auto& file : std::filesystem::directory_iterator(path_)) {
      if (file.path().extension() != ".json") continue;
      std::ifstream in(file.path());
      found.push_back(Json::parse(in));
    }
    return found;
  }
  /// Waits until there are so many.
  std::vector<Json> await_dumps(size_t count) const {
    const auto end = std::chrono::steady_clock::now() + test::kPatience;
    while (dumps().size() < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return dumps();
  }

 private:
  std::string path_;
};

FlightGroup group_named(const std::string& name) {
  FlightGroup group;
  group.name = name;
  group.identity = "1.0";
  group.members = {{.job_rank = 7, .process = 1, .pid = 2, .host = "a"}};
  return group;
}

std::vector<FlightRecord> records_of(const FlightRecorder& recorder) {
  FlightSnapshot snapshot;
  recorder.copy_to(snapshot);
  return snapshot.records;
}

TEST(FlightRecorder, TheOldestMakesRoomForTheNewest) {
  FlightRecorder recorder(4);
  for (uint64_t i = 1; i <= 6; ++i) {
    EXPECT_EQ(recorder.add().id, i);
  }
  std::vector<uint64_t> ids;
  for (const FlightRecord& record : records_of(recorder)) ids.push_back(record.id);
  EXPECT_EQ(ids, (std::vector<uint64_t>{3, 4, 5, 6}));
  EXPECT_EQ(recorder.find(2), nullptr);
  EXPECT_EQ(recorder.find(7), nullptr);
  ASSERT_NE(recorder.find(5), nullptr);
  EXPECT_EQ(recorder.find(5)->id, 5U);
  EXPECT_EQ(recorder.recorded(), 6U);
}

TEST(FlightRecorder, IsOffWithoutRoom) {
  FlightRecorder recorder(0);
  EXPECT_FALSE(recorder.is_enabled());
  EXPECT_EQ(recorder.open(group_named("g")), 0U);
  EXPECT_EQ(recorder.find(0), nullptr);
  EXPECT_TRUE(records_of(recorder).empty());
}

TEST(FlightRecorder, ForgetsClosedGroupsThatNoRecordNames) {
  FlightRecorder recorder(2);
  const uint32_t used = recorder.open(group_named("used"));
  recorder.add().group = used;
  recorder.close(used);
  const uint32_t open = recorder.open(group_named("open"));
  for (int i = 0; i < 1000; ++i) recorder.close(recorder.open(group_named("closed")));
  EXPECT_LT(recorder.groups().size(), 50U);
  EXPECT_NE(recorder.find_group(used), nullptr);
  EXPECT_NE(recorder.find_group(open), nullptr);
}

TEST(FlightWaits, CountsThoseThatItHasNoRoomFor) {
  FlightWaits waits;
  for (int r = 0; r < 12; ++r) {
    waits.add({.rank = r % 10, .is_receive = true});
  }
  EXPECT_EQ(waits.waits[0].rank, 0);
  EXPECT_EQ(waits.waits[7].rank, 7);
  EXPECT_GE(waits.count, 10U);
}

TEST(FlightJson, HasTheKeysOfPyTorch) {
  FlightRecorder recorder(4);
  FlightSnapshot snapshot;
  snapshot.reason = "of a test";
  snapshot.steady_now = 1'000;
  snapshot.wall_now = 5'000'000;
  FlightRecord& record = recorder.add();
  record.group = recorder.open(group_named("g\xff"));  // not UTF-8
  record.collective = Collective::kAllReduce;
  record.dtype = DType::kFloat16;
  record.sequence = 12;
  record.input_bytes = record.output_bytes = 64;
  record.submitted = 400;
  record.started = 500;
  recorder.copy_to(snapshot);
  const Json json = Json::parse(to_json(snapshot));
  const Json& entry = json["entries"][0];
  EXPECT_EQ(entry["profiling_name"], "q7x2:all_reduce");
  EXPECT_EQ(entry["collective_seq_id"], 12);
  EXPECT_EQ(entry["input_sizes"], Json::parse("[[32]]"));
  EXPECT_EQ(entry["output_dtypes"], Json::parse(R"(["Half"])"));
  EXPECT_EQ(entry["state"], "started");
  EXPECT_EQ(entry["time_created_ns"], 4'999'400);
  EXPECT_EQ(entry["time_discovered_started_ns"], 4'999'500);
  EXPECT_TRUE(entry["time_discovered_completed_ns"].is_null());
  EXPECT_EQ(entry["is_p2p"], false);
  const std::string key = entry["process_group"][0];
  EXPECT_EQ(json["pg_config"][key]["ranks"], "[7]");
  EXPECT_EQ(json["pg_status"]["1"]["last_started_collective"], 12);
  EXPECT_EQ(json["pg_status"]["1"]["last_completed_collective"], -1);
  EXPECT_EQ(json["q7x2"]["reason"], "of a test");
}

/// Sets a variable as long as it lives.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

TEST(FlightSettings, RefusesWhatIsNoNumber) {
  for (const char* text : {"x", "-1", "10x", "1000001", "1e3", " 5"}) {
    const Variable variable("Q7X2_FLIGHT_RECORDER", text);
    try {
      FlightSettings::of_environment();
      ADD_FAILURE() << text << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_NE(std::string(error.what()).find("Q7X2_FLIGHT_RECORDER"), std::string::npos);
    }
  }
  const Variable variable("Q7X2_FLIGHT_RECORDER", "17");
  EXPECT_EQ(FlightSettings::of_environment().capacity, 17U);
}

TEST(FlightSettings, MakesTheDirectoryOrRefusesIt) {
  const Directory directory;
  {
    const Variable variable("Q7X2_DUMP", directory.path() + "/a/b");
    EXPECT_EQ(FlightSettings::of_environment().directory, directory.path() + "/a/b");
    EXPECT_TRUE(std::filesystem::is_directory(directory.path() + "/a/b"));
    const Variable off("Q7X2_FLIGHT_RECORDER", "0");
    EXPECT_THROW(FlightSettings::of_environment(), Error);
  }
  std::ofstream(directory.path() + "/file") << "x";
  for (const char* path : {"/proc/no/where", "/file/below", "/file"}) {
    const std::string at = *path == '/' && std::string(path).starts_with("/proc")
                               ? std::string(path)
                               : directory.path() + path;
    const Variable variable("Q7X2_DUMP", at);
    EXPECT_THROW(FlightSettings::of_environment(), Error) << at;
  }
}

TEST(FlightRecorder, KeepsTheWayOfEachOperation) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    rank.runtime().record(*group, {4, 9});
    Comm comm(group);
    comm.succeed(*comm.all_reduce(buffer<int32_t>(100)));
    const auto message = buffer<char>(5);
    comm.succeed(*(rank.rank == 0 ? comm.send(1, 3, message) : comm.receive(0, 3, message)));
    const FlightSnapshot snapshot = rank.runtime().flight_snapshot("of a test");
    // The announcement of the algorithm comes first.
    ASSERT_EQ(snapshot.records.size(), 3U);
    const FlightRecord& first = snapshot.records[0];
    EXPECT_TRUE(first.is_internal);
    EXPECT_EQ(first.sequence, 0U);
    const FlightRecord& call = snapshot.records[1];
    EXPECT_FALSE(call.is_internal);
    EXPECT_EQ(call.collective, Collective::kAllReduce);
    EXPECT_EQ(call.sequence, 1U);
    EXPECT_EQ(call.input_bytes, 400U);
    EXPECT_EQ(call.dtype, DType::kInt32);
    EXPECT_EQ(call.state, State::kDone);
    EXPECT_FALSE(snapshot.names.name_of(call.plan).empty());
    EXPECT_EQ(call.slices_done, call.slices);
    EXPECT_LE(call.submitted, call.started);
    EXPECT_LE(call.started, call.finished);
    EXPECT_FALSE(snapshot.waits.contains(call.id));
    const FlightRecord& last = snapshot.records[2];
    EXPECT_EQ(last.kind, rank.rank == 0 ? Kind::kSend : Kind::kReceive);
    EXPECT_EQ(last.peer, 1 - rank.rank);
    EXPECT_EQ(last.tag, 3U);
    EXPECT_EQ(last.output_bytes, 5U);
    const FlightGroup& known = snapshot.groups.at(call.group);
    EXPECT_EQ(known.members[1].job_rank, 9U);
    EXPECT_EQ(known.members[1].pid, rank.pid_of(1));
    EXPECT_FALSE(known.failure);
  });
}

TEST(FlightRecorder, AFailureKeepsWhatWasWaitedFor) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    rank.runtime().record(*group, {});
    Comm comm(group);
    comm.succeed(*comm.barrier());
    if (rank.rank != 2) {
      comm.failure(*comm.all_reduce(buffer<int32_t>(100), milliseconds(300)));
    } else {
      while (!group->error()) std::this_thread::sleep_for(milliseconds(10));
    }
    const FlightSnapshot snapshot = rank.runtime().flight_snapshot("of a test");
    const FlightGroup& known = snapshot.groups.begin()->second;
    ASSERT_TRUE(known.failure);
    EXPECT_EQ(known.failure->code, ErrorCode::kTimeout);
    size_t failed = 0;
    bool waits_for_two = false;
    for (const FlightRecord& record : snapshot.records) {
      failed += record.state == State::kFailed ? 1 : 0;
      const auto found = snapshot.waits.find(record.id);
      if (found == snapshot.waits.end()) continue;
      for (const FlightWaits::Wait& wait : found->second.waits) waits_for_two |= wait.rank == 2;
    }
    EXPECT_EQ(failed > 0, rank.rank != 2);
    rank.put("waits", waits_for_two ? "yes" : "no");
    EXPECT_TRUE(rank.get(0, "waits") == "yes" || rank.get(1, "waits") == "yes");
  });
}

TEST(FlightRecorder, WhatIsInProgressIsNeverLost) {
  run_ranks(2, [](Rank& rank) {
    const Variable variable("Q7X2_FLIGHT_RECORDER", "4");
    const auto group = rank.group();
    rank.runtime().record(*group, {});
    Comm comm(group);
    const auto data = buffer<char>(1);
    const auto waiting = rank.rank == 0 ? comm.receive(1, 8, data) : nullptr;
    for (int i = 0; i < 10; ++i) comm.succeed(*comm.barrier());
    const FlightSnapshot snapshot = rank.runtime().flight_snapshot("of a test");
    EXPECT_EQ(snapshot.records.size(), rank.rank == 0 ? 5U : 4U);
    const FlightRecord& first = snapshot.records.front();
    if (rank.rank == 0) {
      EXPECT_EQ(first.id, 1U);
      EXPECT_EQ(first.kind, Kind::kReceive);
      EXPECT_EQ(first.state, State::kStarted);
      ASSERT_EQ(snapshot.waits.at(1).count, 1U);
      EXPECT_EQ(snapshot.waits.at(1).waits[0].rank, 1);
    }
    rank.barrier();
    if (rank.rank == 1) comm.succeed(*comm.send(0, 8, data));
    if (waiting) comm.succeed(*waiting);
  });
}

TEST(DumpWriter, AFailedGroupIsWrittenOnce) {
  const Directory directory;
  run_ranks(2, [&](Rank& rank) {
    const Variable variable("Q7X2_DUMP", directory.path());
    const auto group = rank.group();
    rank.runtime().record(*group, {});
    rank.barrier();
    group->abort(Error(ErrorCode::kAborted, "the end"));
    group->abort(Error(ErrorCode::kAborted, "again"));
    const auto dumps = directory.await_dumps(2);
    ASSERT_EQ(dumps.size(), 2U);
    for (const Json& dump : dumps) {
      EXPECT_NE(dump["q7x2"]["reason"].get<std::string>().find("failed: "), std::string::npos);
      EXPECT_EQ(dump["q7x2"]["groups"][0]["failure"]["code"], "aborted");
    }
    rank.barrier();
  });
  EXPECT_EQ(directory.dumps().size(), 2U);
}

TEST(DumpWriter, ASignalAsksForOne) {
  const Directory directory;
  run_ranks(1, [&](Rank& rank) {
    const Variable variable("Q7X2_DUMP", directory.path());
    rank.runtime();
    ::raise(SIGUSR2);
    const auto dumps = directory.await_dumps(1);
    ASSERT_EQ(dumps.size(), 1U);
    EXPECT_NE(dumps[0]["q7x2"]["reason"].get<std::string>().find("SIGUSR2"), std::string::npos);
  });
}

volatile std::sig_atomic_t own_signals = 0;

TEST(DumpWriter, LeavesTheProgramsOwnHandlerAlone) {
  const Directory directory;
  run_ranks(1, [&](Rank& rank) {
    std::signal(SIGUSR2, [](int) { own_signals = own_signals + 1; });
    const Variable variable("Q7X2_DUMP", directory.path());
    rank.runtime();
    ::raise(SIGUSR2);
    EXPECT_EQ(own_signals, 1);
  });
  EXPECT_TRUE(directory.dumps().empty());
}

TEST(DumpWriter, WritesAllOrNothing) {
  const Directory directory;
  write_dump({}, directory.path() + "/one.json");
  EXPECT_EQ(directory.dumps().size(), 1U);
  EXPECT_THROW(write_dump({}, directory.path() + "/no/such.json"), Error);
  size_t files = 0;
  for ([[maybe_unused]] const auto& file : std::filesystem::directory_iterator(directory.path())) {
    ++files;
  }
  EXPECT_EQ(files, 1U);
}

}  // namespace
}  // namespace q7x2
