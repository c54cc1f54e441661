// What processes that are not of the job, and other users of the host, can do: nothing.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm.h"
#include "ranks.h"
#include "transport/bootstrap/published.h"
#include "transport/peer/control.h"
#include "transport/trust/envelope.h"

namespace q7x2::test {
namespace {

constexpr unsigned kControlId = 0;
constexpr unsigned kBootstrapId = 2;

/// "The group has failed", from rank 1 to rank 0.
std::string abort_of(const Group& group) {
  Control control;
  control.type = ControlType::kAbort;
  control.slot = group.membership().peer_info(0).slot;
  control.sender_slot = group.membership().peer_info(1).slot;
  control.sender = 1;
  control.receiver = 0;
  control.text = "a forged failure";
  return control.encode();
}

void send(Group& group, unsigned id, const std::string& bytes) {
  Runtime& runtime = group.runtime();
  Locked locked(runtime.lock());
  ASSERT_TRUE(group.links().connect(locked, 0));
  runtime.reactor().send_message(locked, group.membership().peer(0).shared.endpoint(), id, bytes);
}

/// From this process to rank 0, in the envelope that its own next message would have: an envelope
/// with a number of its own would make messages under way look old.
std::string close_for_rank_0(Group& group, std::string_view message) {
  Runtime& runtime = group.runtime();
  Locked locked(runtime.lock());
  return runtime.envelopes().close(Envelopes::Kind::kControl,
                                   group.membership().peer_info(0).identity(), message);
}

void expect_refused(Rank& rank, uint64_t count) {
  const auto refused = [&] {
    Locked locked(rank.runtime().lock());
    return rank.runtime().envelopes().refused();
  };
  const TimePoint give_up = Clock::now() + kPatience;
  while (refused() < count && Clock::now() < give_up) rank.runtime().drive();
  EXPECT_EQ(refused(), count);
}

TEST(Trust, ForgedAndRecordedMessagesAreDropped) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    rank.barrier();
    if (rank.rank == 1) {
      const Identity other = group->membership().peer_info(0).identity();
      // Another secret, no envelope at all, and another sender's envelope.
      Envelopes stranger(JobSecret("another secret"), rank.runtime().identity());
      send(*group, kControlId, stranger.close(Envelopes::Kind::kControl, other, abort_of(*group)));
      send(*group, kControlId, abort_of(*group));
      Envelopes somebody(JobSecret(""), random_identity());
      somebody.close(Envelopes::Kind::kControl, other, "");
      send(*group, kControlId,
           somebody.close(Envelopes::Kind::kBootstrap, other, abort_of(*group)));
      // A message of this process that was sent before.
      const std::string harmless = close_for_rank_0(*group, "no control");
      send(*group, kControlId, harmless);
      send(*group, kControlId, harmless);
    } else {
      expect_refused(rank, 4);
    }
    rank.barrier();
    // The group still works.
    Comm comm(group);
    const auto data = buffer<int32_t>(100, rank.rank + 1);
    comm.succeed(*comm.flat(Collective::kAllReduce, data, DType::kInt32, kLong));
    EXPECT_EQ(data->front(), 3);
    rank.barrier();
  });
}

// A member of the job may abort the group, so what is dropped above is dropped for its proof.
TEST(Trust, AMessageOfTheJobIsTaken) {
  run_ranks(2, [](Rank& rank) {
    const auto group = rank.group();
    rank.barrier();
    if (rank.rank == 1) {
      send(*group, kControlId, close_for_rank_0(*group, abort_of(*group)));
    } else {
      const TimePoint give_up = Clock::now() + kPatience;
      while (!group->error() && Clock::now() < give_up) rank.runtime().drive();
      ASSERT_TRUE(group->error());
      EXPECT_STREQ(group->error()->what(), "a forged failure");
    }
    rank.barrier();
  });
}

TEST(Trust, RanksWithDifferentSecretsMakeNoGroup) {
  run_ranks(3, [](Rank& rank) {
    if (rank.rank == 1) ::setenv("Q7X2_SECRET", "the secret of others", 1);
    try {
      rank.group();
      ADD_FAILURE() << "a group was made";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      const std::string text = error.what();
      EXPECT_NE(text.find("Q7X2_SECRET"), std::string::npos) << text;
      EXPECT_NE(text.find(rank.rank == 1 ? "rank 0" : "rank 1"), std::string::npos) << text;
    }
    rank.barrier();
  });
}

TEST(Trust, RanksWithOneSecretMakeAGroup) {
  run_ranks(3, [](Rank& rank) {
    ::setenv("Q7X2_SECRET", "what only this job knows", 1);
    const auto group = rank.group("g", {}, /*eager=*/true);
    Comm comm(group);
    const auto data = buffer<int32_t>(100, 1);
    comm.succeed(*comm.flat(Collective::kAllReduce, data, DType::kInt32, kLong));
    EXPECT_EQ(data->front(), 3);
    Locked locked(rank.runtime().lock());
    EXPECT_EQ(rank.runtime().envelopes().refused(), 0U);
  });
}

/// The modes of the SysV segments that this process has made.
std::vector<std::string> modes_of_segments() {
  std::vector<std::string> modes;
  std::ifstream table("/proc/sysvipc/shm");
  std::string line;
  std::getline(table, line);  // key shmid perms size cpid ...
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string key;
    std::string number;
    std::string mode;
    std::string size;
    pid_t creator = 0;
    fields >> key >> number >> mode >> size >> creator;
    if (creator == ::getpid()) modes.push_back(mode);
  }
  return modes;
}

std::vector<mode_t> modes_of_files() {
  std::vector<mode_t> modes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string target = std::filesystem::read_symlink(entry.path(), error).string();
    struct stat status {};
    if (target.starts_with("/dev/shm/") && ::stat(entry.path().c_str(), &status) == 0) {
      modes.push_back(status.st_mode & 0777);
    }
  }
  return modes;
}

TEST(Trust, SharedMemoryIsForThisUserOnly) {
  for (const std::string tls : {"sysv,self,tcp", "posix,self,tcp"}) {
    run_ranks(2, [&](Rank& rank) {
      ::setenv("UCX_TLS", tls.c_str(), 1);
      ::umask(0);  // nothing helps
      const auto group = rank.group();
      EXPECT_TRUE(group->messages().shares_memory(1 - rank.rank));
      const std::vector<std::string> segments = modes_of_segments();
      const std::vector<mode_t> files = modes_of_files();
      // One of UCX's and one of q7x2's.
      EXPECT_GE(segments.size() + files.size(), 2U);
      for (const std::string& mode : segments) EXPECT_EQ(mode.substr(mode.size() - 3), "600");
      for (const mode_t mode : files) EXPECT_EQ(mode, 0600U);
      rank.barrier();
    });
  }
}

TEST(Trust, WhatWasPublishedForAnotherAttemptOrGroupIsRefused) {
  const JobSecret secret("what only this job knows");
  const Seat seat{.rank = 1, .world_size = 4, .group = "g", .attempt = "7"};
  const std::string sealed = publish(secret, "peer_info", seat, "the peer_info");
  EXPECT_EQ(read_published(secret, "peer_info", seat, sealed), "the peer_info");
  const auto is_refused = [&](Seat other, const std::string& kind = "peer_info") {
    try {
      read_published(secret, kind, other, sealed);
      return false;
    } catch (const Error& error) {
      return error.code() == ErrorCode::kMismatch;
    }
  };
  EXPECT_TRUE(is_refused({1, 4, "g", "6"}));
  EXPECT_TRUE(is_refused({1, 4, "h", "7"}));
  EXPECT_TRUE(is_refused({2, 4, "g", "7"}));
  EXPECT_TRUE(is_refused({1, 5, "g", "7"}));
  EXPECT_TRUE(is_refused(seat, "memory"));
}

TEST(Trust, AShortSecretIsRefusedWithTheCommandThatMakesAGoodOne) {
  ::setenv("Q7X2_SECRET", "short", 1);
  try {
    JobSecret::of_environment();
    ADD_FAILURE() << "it is taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("openssl rand -hex 32"), std::string::npos);
  }
  ::setenv("Q7X2_SECRET", "0123456789abcdef", 1);
  EXPECT_NO_THROW(JobSecret::of_environment());
  ::unsetenv("Q7X2_SECRET");
}

std::string refusal_of_environment() {
  try {
    JobSecret::of_environment();
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.what();
  }
}

TEST(Trust, ASecretMayStandInAFile) {
  const std::string path = testing::TempDir() + "q7x2-secret-" + std::to_string(::getpid());
  const std::string secret = "0123456789abcdef";
  const auto write = [&](const std::string& text) { std::ofstream(path) << text; };
  ::setenv("Q7X2_SECRET_FILE", path.c_str(), 1);
  EXPECT_NE(refusal_of_environment().find(path + ": No such file"), std::string::npos);
  write("");
  EXPECT_NE(refusal_of_environment().find("it is empty"), std::string::npos);
  write("short\n");
  EXPECT_NE(refusal_of_environment().find(path + " has 5 characters"), std::string::npos);
  for (const char* end : {"", "\n", "\r\n", "\na second line"}) {
    write(secret + end);
    EXPECT_EQ(JobSecret::of_environment().seal("place", "text"),
              JobSecret(secret).seal("place", "text"));
  }
  ::setenv("Q7X2_SECRET", secret.c_str(), 1);
  EXPECT_NE(refusal_of_environment().find("are both set"), std::string::npos);
  ::unsetenv("Q7X2_SECRET");
  ::unsetenv("Q7X2_SECRET_FILE");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace q7x2::test
