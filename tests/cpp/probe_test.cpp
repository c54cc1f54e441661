// The probe and the survey on real ranks: all end with one Fabric, whatever rank 0 is told to do.
#include "executor/probe/probe.h"

#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/build_id.h"
#include "executor/probe/announcement.h"
#include "executor/probe/survey.h"
#include "fabric/catalogue.h"
#include "fabric/host.h"
#include "fabric/json.h"
#include "ranks.h"

namespace q7x2 {
namespace {

namespace fs = std::filesystem;
using test::Rank;
using test::run_ranks;

constexpr std::chrono::seconds kTimeout{10};

/// A cache directory of the test's own, which the ranks inherit.
class Survey : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (fs::temp_directory_path() / "q7x2-survey-XXXXXX").string();
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    cache_ = pattern;
    ::setenv("XDG_CACHE_HOME", cache_.c_str(), 1);
  }
  void TearDown() override {
    for (const char* name :
         {"XDG_CACHE_HOME", "Q7X2_PROBE", "Q7X2_FABRIC", "Q7X2_FABRIC_MAX_AGE"}) {
      ::unsetenv(name);
    }
    std::error_code ignored;
    fs::remove_all(cache_, ignored);
  }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> files;
    if (fs::exists(cache_ / "q7x2")) {
      for (const auto& entry : fs::directory_iterator(cache_ / "q7x2")) files.push_back(entry);
    }
    return files;
  }

  fs::path cache_;
};

SurveyOptions options_of(Rank& rank) {
  return {.warn = [&rank](const std::string& text) { rank.put("warning", text); },
          .torch = "test",
          .timeout = kTimeout};
}

std::shared_ptr<const Fabric> survey_of(Rank& rank, const std::string& name = "world",
                                        const std::vector<int>& members = {}) {
  return survey(rank.group(name, members), options_of(rank));
}

void expect_equal_on_all_ranks(Rank& rank, const Fabric& fabric) {
  const std::string text = to_json(fabric);
  // The board takes short notes.
  const std::string digest = std::to_string(std::hash<std::string>()(text));
  rank.put("result", digest);
  EXPECT_EQ(digest, rank.get(0, "result"));
}

TEST_F(Survey, AProbeOfOneHost) {
  ::setenv("Q7X2_PROBE", "force", 1);
  run_ranks(3, [](Rank& rank) {
    const auto fabric = survey_of(rank);
    expect_equal_on_all_ranks(rank, *fabric);
    EXPECT_TRUE(fabric->one_host());
    EXPECT_EQ(fabric->made.source, "probe");
    EXPECT_EQ(fabric->made.torch, "test");
    EXPECT_TRUE(fabric->memory.measured);
    EXPECT_FALSE(fabric->network.measured);
    EXPECT_GT(fabric->memory.alpha, 0);
    EXPECT_GT(fabric->copy_rate, 0);
    EXPECT_GE(fabric->hosts[0].hardware.cores, 1);
  });
  EXPECT_EQ(entries().size(), 1U);
}

// Q7X2_HOST_ID parts one machine into hosts, which talk over TCP.
TEST_F(Survey, AProbeOfThreeHosts) {
  ::setenv("Q7X2_PROBE", "pairs", 1);
  run_ranks(5, [](Rank& rank) {
    ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank / 2).c_str(), 1);
    const auto fabric = survey_of(rank);
    expect_equal_on_all_ranks(rank, *fabric);
    EXPECT_EQ(fabric->host_of, (std::vector<int>{0, 0, 1, 1, 2}));
    EXPECT_TRUE(fabric->memory.measured && fabric->network.measured);
    EXPECT_EQ(fabric->pairs.size(), 6U);
    for (const auto& pair : fabric->pairs) {
      EXPECT_GT(pair.rate, 0);
      EXPECT_GT(pair.solo, 0);
      EXPECT_GT(pair.alpha, 0);
    }
    for (const auto& host : fabric->hosts) EXPECT_GT(host.egress, 0);
    EXPECT_NE(fabric->hosts[0].name, fabric->hosts[1].name);
  });
}

TEST_F(Survey, TheCatalogueSavesTheNextProbe) {
  const auto body = [](Rank& rank) {
    const auto fabric = survey_of(rank);
    expect_equal_on_all_ranks(rank, *fabric);
    EXPECT_EQ(fabric->made.source, "probe");
  };
  run_ranks(2, body);
  ASSERT_EQ(entries().size(), 1U);
  const fs::path entry = entries()[0];
  Fabric known = read_fabric(entry);
  known.made.note = "from the catalogue";
  write_fabric(entry, known);
  run_ranks(4, [](Rank& rank) { EXPECT_EQ(survey_of(rank)->made.note, "from the catalogue"); });

  ::setenv("Q7X2_FABRIC_MAX_AGE", "0s", 1);
  run_ranks(2, [](Rank& rank) { EXPECT_NE(survey_of(rank)->made.note, "from the catalogue"); });
  EXPECT_EQ(entries().size(), 1U);
}

TEST(Fabric, PlacedRanksAreNotThoseThatWereBound) {
  Fabric known = Fabric::one_host_of(2, 2);
  known.hosts[0].key = "key";
  known.bindings = {{0, "0"}, {1, "1"}};
  const auto fabric = placed(known, {0, 0, 0, 0}, {"key"}, {"h0"}, false);
  ASSERT_TRUE(fabric.has_value());
  EXPECT_EQ(fabric->world_size(), 4);
  EXPECT_TRUE(fabric->bindings.empty());
}

TEST_F(Survey, ABrokenEntryIsReplaced) {
  run_ranks(2, [](Rank& rank) { survey_of(rank); });
  ASSERT_EQ(entries().size(), 1U);
  std::ofstream(entries()[0]) << "{broken";
  run_ranks(2, [](Rank& rank) { EXPECT_EQ(survey_of(rank)->made.source, "probe"); });
  EXPECT_EQ(read_fabric(entries()[0]).made.source, "probe");
}

TEST_F(Survey, AnUnwritableCatalogueIsAWarning) {
  std::ofstream(cache_ / "q7x2") << "a file, where a directory is needed";
  run_ranks(2, [](Rank& rank) {
    EXPECT_EQ(survey_of(rank)->made.source, "probe");
    if (rank.rank == 0) {
      EXPECT_NE(rank.get(0, "warning").find("cannot write"), std::string::npos);
    }
  });
}

Fabric::Tuned time_of(int ranks, uint64_t bytes, const std::string& algorithm) {
  return {Collective::kAllReduce, ranks, bytes, algorithm, 64, 1, 1e-3};
}

std::vector<std::string> algorithms_tuned(const Fabric& fabric) {
  std::vector<std::string> names;
  for (const Fabric::Tuned& time : fabric.tuned) names.push_back(time.algorithm);
  return names;
}

TEST(Fabric, LearnsTimesOfOneRunInPlaceOfOlderOnes) {
  Fabric fabric = Fabric::one_host_of(2, 2);
  fabric.learn({time_of(2, 64, "ring"), time_of(2, 64, "sra"), time_of(2, 128, "direct")});
  fabric.learn({time_of(2, 64, "chain"), time_of(4, 64, "blink")});
  EXPECT_EQ(algorithms_tuned(fabric), (std::vector<std::string>{"direct", "chain", "blink"}));
}

TEST_F(Survey, TunedTimesAreKnownToLaterGroupsAndJobs) {
  run_ranks(2, [](Rank& rank) {
    Fabric measured = *survey_of(rank);
    measured.tuned = {time_of(2, 64, "ring"), time_of(2, 64, "sra")};
    remember_times(measured);
    if (rank.rank == 0) {
      EXPECT_TRUE(catalogue_times(measured, std::chrono::hours(1)));
    }
    measured.tuned = {time_of(3, 64, "direct")};
    remember_times(measured);
    EXPECT_EQ(algorithms_tuned(*survey_of(rank, "later")),
              (std::vector<std::string>{"ring", "sra", "direct"}));
  });
  run_ranks(2, [](Rank& rank) {
    EXPECT_EQ(algorithms_tuned(*survey_of(rank)), (std::vector<std::string>{"ring", "sra"}));
  });
}

TEST_F(Survey, TimesWithoutAMeasuredFabricAreNotCatalogued) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("Q7X2_PROBE", "0", 1);
    Fabric measured = *survey_of(rank);
    measured.tuned = {time_of(2, 64, "ring")};
    remember_times(measured);
    EXPECT_FALSE(catalogue_times(measured, std::chrono::hours(1)));
    EXPECT_TRUE(survey_of(rank, "later")->tuned.empty());
  });
  EXPECT_TRUE(entries().empty());
}

TEST_F(Survey, SubgroupsTakeTheirPart) {
  run_ranks(4, [](Rank& rank) {
    ::setenv("Q7X2_HOST_ID", std::to_string(rank.rank / 2).c_str(), 1);
    const auto whole = survey_of(rank);
    ::setenv("Q7X2_FABRIC_MAX_AGE", "0s", 1);  // not from the catalogue
    if (rank.rank > 0) {
      const auto part = survey_of(rank, "part", {3, 1, 2});
      EXPECT_EQ(part->host_of, (std::vector<int>{0, 1, 0}));
      EXPECT_EQ(part->made.time, whole->made.time);
      EXPECT_EQ(part->hosts[0].key, whole->hosts[1].key);
    }
    if (rank.rank < 2) {
      EXPECT_TRUE(survey_of(rank, "one host", {0, 1})->one_host());
    }
  });
}

TEST_F(Survey, NoProbeGivesDefaultsThatSaySo) {
  ::setenv("Q7X2_PROBE", "0", 1);
  run_ranks(2, [](Rank& rank) {
    const auto fabric = survey_of(rank);
    EXPECT_EQ(fabric->made.source, "default");
    EXPECT_FALSE(fabric->memory.measured);
    EXPECT_NE(fabric->made.note.find("Q7X2_PROBE=0"), std::string::npos);
  });
  EXPECT_TRUE(entries().empty());
}

TEST_F(Survey, AFileIsTakenByKeyOrName) {
  const fs::path file = cache_ / "mine.json";
  std::array<char, 256> name{};
  ASSERT_EQ(::gethostname(name.data(), name.size() - 1), 0);
  Fabric fabric = Fabric::uniform(2, 1, 5e6);
  fabric.hosts[1].name = name.data();
  fabric.hosts[1].cores = 77;
  write_fabric(file, fabric);
  ::setenv("Q7X2_FABRIC", file.c_str(), 1);
  run_ranks(3, [](Rank& rank) {
    const auto found = survey_of(rank);
    EXPECT_EQ(found->host_of, (std::vector<int>{0, 0, 0}));
    EXPECT_EQ(found->hosts.at(0).cores, 77);
  });
}

TEST_F(Survey, WhatIsWrongOnRank0IsSaidOnAllRanks) {
  const auto expect_everywhere = [](const std::string& expected) {
    run_ranks(3, [&expected](Rank& rank) {
      try {
        survey_of(rank);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
      }
    });
  };
  const fs::path file = cache_ / "mine.json";
  ::setenv("Q7X2_FABRIC", file.c_str(), 1);
  expect_everywhere("mine.json: No such file");
  std::ofstream(file) << R"({"q7x2_fabric": 1, "hosts": [{"name": 5}], "ranks": [0]})";
  expect_everywhere("mine.json: hosts[0].name: expected a line of text, got 5");
  write_fabric(file, Fabric::uniform(1, 1, 1));
  expect_everywhere("has the hosts h0, but the group is on");
  ::setenv("Q7X2_FABRIC", cache_.c_str(), 1);
  expect_everywhere("it is a directory");
  ::unsetenv("Q7X2_FABRIC");
  ::setenv("Q7X2_PROBE", "maybe", 1);
  expect_everywhere("Q7X2_PROBE: expected 0, auto, force or pairs, got 'maybe'");
  ::unsetenv("Q7X2_PROBE");
  ::setenv("Q7X2_FABRIC_MAX_AGE", "7 days", 1);
  expect_everywhere("Q7X2_FABRIC_MAX_AGE: expected a number and s, m, h or d");
}

TEST_F(Survey, AnotherBuildIsRefusedByName) {
  run_ranks(3, [](Rank& rank) {
    const auto group = rank.group();
    std::vector<PeerInfo> peer_infos = group->membership().peer_infos();
    peer_infos[2].announcement = Announcement{"0.1.0+bad", own_binding()}.encode();
    try {
      survey(group, options_of(rank), decide_fabric(peer_infos, options_of(rank)));
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      const std::string text = error.what();
      EXPECT_NE(text.find("rank 2"), std::string::npos) << text;
      EXPECT_NE(text.find("0.1.0+bad"), std::string::npos) << text;
      EXPECT_NE(text.find("rank 0 has " + build_id()), std::string::npos) << text;
    }
    rank.barrier();
  });
  EXPECT_TRUE(entries().empty());
}

void bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(set), &set), 0);
}

TEST_F(Survey, SaysWhereTheRanksAreBound) {
  const std::vector<int> cpus = usable_cpu_list();
  run_ranks(3, [&](Rank& rank) {
    if (rank.rank > 0) bind_to(cpus[static_cast<size_t>(rank.rank) % cpus.size()]);
    const auto fabric = survey_of(rank);
    expect_equal_on_all_ranks(rank, *fabric);
    ASSERT_EQ(fabric->bindings.size(), 3U);
    EXPECT_EQ(fabric->bindings[0].cpus, cpu_list_text(cpus));
    EXPECT_EQ(fabric->bindings[1].cpus, std::to_string(cpus[1 % cpus.size()]));
    EXPECT_EQ(fabric->hosts[0].cores, static_cast<int>(cpus.size()));
    // A later group has them as they are then.
    if (rank.rank == 1) bind_to(cpus[0]);
    EXPECT_EQ(survey_of(rank, "later")->bindings[1].cpus, std::to_string(cpus[0]));
  });
}

TEST_F(Survey, CoresAreThoseOfAllRanksTogether) {
  const std::vector<int> cpus = usable_cpu_list();
  run_ranks(2, [&](Rank& rank) {
    bind_to(cpus[static_cast<size_t>(rank.rank) % cpus.size()]);
    const auto fabric = survey_of(rank);
    EXPECT_EQ(fabric->hosts[0].cores, cpus.size() > 1 ? 2 : 1);
  });
}

TEST(Announcement, IsCheckedBeforeUse) {
  const Announcement good{"b", {1, "0-3"}};
  EXPECT_EQ(Announcement::decode(good.encode(), "b", "rank 1").binding.cpus, "0-3");
  const std::string whole = good.encode();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW(Announcement::decode(whole.substr(0, length), "b", "rank 1"), Error);
  }
  for (const Fabric::Binding& binding :
       {Fabric::Binding{-2, ""}, Fabric::Binding{0, "3-1"}, Fabric::Binding{0, "0-999999999"},
        Fabric::Binding{0, "a"}}) {
    const Announcement bad{"b", binding};
    EXPECT_THROW(Announcement::decode(bad.encode(), "b", "rank 1"), Error) << binding.cpus;
  }
}

TEST_F(Survey, ARankThatDiesDuringTheProbeEndsIt) {
  run_ranks(3,
            [](Rank& rank) {
              const auto group = rank.group();
              if (rank.rank == 2) ::kill(::getpid(), SIGKILL);
              try {
                survey(group, options_of(rank));
                ADD_FAILURE() << "no error";
              } catch (const Error& error) {
                EXPECT_EQ(error.code(), ErrorCode::kPeerFailed) << error.what();
                EXPECT_EQ(error.rank(), 2);
              }
            },
            {.killed = {2}});
}

}  // namespace
}  // namespace q7x2
