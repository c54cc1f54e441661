// How rank 0 and servers find each other through the store: who comes, who is late, who is refused.
#include "transport/bootstrap/server_roll.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"
#include "shared_store.h"

namespace q7x2 {
namespace {

using test::Client;
using test::SharedStore;

constexpr std::chrono::milliseconds kShort{50};
constexpr std::chrono::milliseconds kPatient{20'000};

/// A store that counts its calls.
class Counting final : public KeyStore {
 public:
  explicit Counting(SharedStore& store) : client_(store) {}
  int calls() const { return calls_; }

  void set(const std::string& key, const std::string& value) override {
    ++calls_;
    client_.set(key, value);
  }
  int64_t add(const std::string& key, int64_t amount) override {
    ++calls_;
    return client_.add(key, amount);
  }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    ++calls_;
    return client_.compare_set(key, expected, desired);
  }
  bool check(const std::vector<std::string>& keys) override {
    ++calls_;
    return client_.check(keys);
  }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    ++calls_;
    return client_.get(keys);
  }
  void pause(std::chrono::microseconds time) override { client_.pause(time); }

 private:
  Client client_;
  int calls_ = 0;
};

PeerInfo peer_info_of(uint64_t process) {
  PeerInfo peer_info;
  peer_info.process = process;
  peer_info.pid = 41;
  peer_info.host_key = "host";
  peer_info.hostname = "host";
  peer_info.address = "address of " + std::to_string(process);
  return peer_info;
}

std::vector<PeerInfo> ranks_of(uint64_t count) {
  std::vector<PeerInfo> ranks;
  for (uint64_t rank = 0; rank < count; ++rank) ranks.push_back(peer_info_of(100 + rank));
  return ranks;
}

std::vector<int64_t> numbers_of(const ServerMeeting& meeting) {
  std::vector<int64_t> numbers;
  for (const ServerMeeting::Server& server : meeting.servers) numbers.push_back(server.number);
  return numbers;
}

/// Looks until there is an invitation; its meeting.
std::string invited(ServerSeat& seat) {
  while (true) {
    if (const auto meeting = seat.look()) return *meeting;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

TEST(ServerRoll, WithoutServersOneCallToTheStore) {
  SharedStore shared;
  Counting store(shared);
  const JobSecret secret("");
  EXPECT_FALSE(ServerRoll(store, secret).invite("g", ranks_of(4), {}).has_value());
  EXPECT_EQ(store.calls(), 1);
}

TEST(ServerRoll, ServersThatComeAreListed) {
  SharedStore shared;
  Client for_a(shared);
  Client for_b(shared);
  Client for_rank(shared);
  const JobSecret secret("of this job");
  ServerSeat a(for_a, secret, "a", peer_info_of(1));
  ServerSeat b(for_b, secret, "b", peer_info_of(2));
  EXPECT_EQ(a.number(), 1);
  EXPECT_EQ(b.number(), 2);
  for (int group = 0; group < 2; ++group) {  // each is invited again
    std::string met_a;
    std::string met_b;
    std::thread thread_a([&] { met_a = invited(a); });
    std::thread thread_b([&] { met_b = invited(b); });
    const auto meeting =
        ServerRoll(for_rank, secret).invite("g", ranks_of(4), {.patience = kPatient});
    thread_a.join();
    thread_b.join();
    ASSERT_TRUE(meeting.has_value());
    EXPECT_EQ(numbers_of(*meeting), (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(meeting->names(), (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(meeting->servers[1].peer_info.address, "address of 2");
    EXPECT_EQ(met_a, meeting->key);
    EXPECT_EQ(met_b, meeting->key);
    const auto list = ServerSeat::list_of(for_b, secret, met_b);
    ASSERT_TRUE(list.has_value());
    EXPECT_EQ(numbers_of(*list), numbers_of(*meeting));
    EXPECT_EQ(list->names(), meeting->names());
    EXPECT_EQ(list->servers[0].peer_info.address, "address of 1");
    EXPECT_EQ(list->group, "g");
    ASSERT_EQ(list->ranks.size(), 4U);
    EXPECT_EQ(list->ranks[3].process, 103U);
  }
}

TEST(ServerRoll, AServerThatDoesNotComeIsNamedOnce) {
  SharedStore shared;
  Client client(shared);
  const JobSecret secret("");
  ServerSeat dead(client, secret, "dead", peer_info_of(1));
  std::vector<std::string> warnings;
  const ServerRoll::Options options{
      .patience = kShort, .warn = [&](const std::string& text) { warnings.push_back(text); }};
  EXPECT_FALSE(ServerRoll(client, secret).invite("g", ranks_of(2), options).has_value());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("server 1 ('dead') has not come"), std::string::npos) << warnings[0];
  EXPECT_FALSE(ServerRoll(client, secret).invite("h", ranks_of(2), options).has_value());
  EXPECT_EQ(warnings.size(), 1U);
  // It was only slow: it is not on the list, and takes another number.
  const std::string meeting = invited(dead);
  const auto list = ServerSeat::list_of(client, secret, meeting);
  ASSERT_TRUE(list.has_value());
  EXPECT_TRUE(list->servers.empty());
  dead.announce();
  EXPECT_EQ(dead.number(), 2);
}

TEST(ServerRoll, AServerThatIsKnownToHaveEndedIsNotWaitedFor) {
  SharedStore shared;
  Client client(shared);
  const JobSecret secret("");
  const ServerSeat dead(client, secret, "dead", peer_info_of(41));
  int warnings = 0;
  EXPECT_FALSE(ServerRoll(client, secret)
                   .invite("g", ranks_of(2),
                           {.patience = kPatient,
                            .warn = [&](const std::string&) { ++warnings; },
                            .has_ended = [](uint64_t process) { return process == 41; }})
                   .has_value());
  EXPECT_EQ(warnings, 0);
}

/// A store over a slow network: each call of the server takes so long.
class Slow final : public KeyStore {
 public:
  Slow(SharedStore& store, std::chrono::milliseconds delay) : client_(store), delay_(delay) {}

  void set(const std::string& key, const std::string& value) override {
    std::this_thread::sleep_for(delay_);
    client_.set(key, value);
  }
  int64_t add(const std::string& key, int64_t amount) override { return client_.add(key, amount); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return client_.compare_set(key, expected, desired);
  }
  bool check(const std::vector<std::string>& keys) override { return client_.check(keys); }
  std::vector<std::string> get(const std::vector<std::string>& keys) override {
    return client_.get(keys);
  }
  void pause(std::chrono::microseconds time) override { client_.pause(time); }

 private:
  Client client_;
  const std::chrono::milliseconds delay_;
};

// It has its number when the group is made, and says who it is a little later.
TEST(ServerRoll, AServerThatIsJustAnnouncingItselfIsWaitedFor) {
  SharedStore shared;
  Client for_rank(shared);
  Slow for_server(shared, std::chrono::milliseconds(40));
  const JobSecret secret("");
  std::thread server([&] {
    ServerSeat seat(for_server, secret, "a", peer_info_of(1));
    invited(seat);
  });
  while (for_rank.add("q7x2/servers/count", 0) == 0) std::this_thread::yield();
  const auto meeting =
      ServerRoll(for_rank, secret).invite("g", ranks_of(2), {.patience = kPatient});
  server.join();
  ASSERT_TRUE(meeting.has_value());
  EXPECT_EQ(meeting->names(), std::vector<std::string>{"a"});
}

TEST(ServerRoll, AServerThatSaysNothingIsNamedOnceAndMayComeLater) {
  SharedStore shared;
  Client client(shared);
  const JobSecret secret("");
  client.add("q7x2/servers/count", 1);
  std::vector<std::string> warnings;
  const auto invite = [&](std::chrono::milliseconds patience) {
    return ServerRoll(client, secret)
        .invite("g", ranks_of(2), {.patience = patience, .warn = [&](const std::string& text) {
                                     warnings.push_back(text);
                                   }});
  };
  EXPECT_FALSE(invite(kShort).has_value());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("server 1 has not said who it is"), std::string::npos) << warnings[0];
  EXPECT_FALSE(invite(kPatient).has_value()) << "it is not waited for again";
  EXPECT_EQ(warnings.size(), 1U);
  client.set("q7x2/servers/1", secret.seal("server 1", encode_list({"late", "41"})));
  EXPECT_FALSE(invite(kShort).has_value());
  ASSERT_EQ(warnings.size(), 2U) << "it was invited";
  EXPECT_NE(warnings[1].find("'late'"), std::string::npos) << warnings[1];
}

TEST(ServerRoll, AServerThatHasLeftIsNotInvited) {
  SharedStore shared;
  Client client(shared);
  const JobSecret secret("");
  ServerSeat seat(client, secret, "a", peer_info_of(1));
  seat.leave();
  int warnings = 0;
  EXPECT_FALSE(ServerRoll(client, secret)
                   .invite("g", ranks_of(2),
                           {.patience = kPatient, .warn = [&](const std::string&) { ++warnings; }})
                   .has_value());
  EXPECT_EQ(warnings, 0);
  EXPECT_FALSE(seat.look().has_value());
}

TEST(ServerRoll, AServerWithAnotherSecretIsRefusedAndLearnsIt) {
  SharedStore shared;
  Client client(shared);
  const JobSecret ours("ours");
  const JobSecret theirs("theirs");
  ServerSeat seat(client, theirs, "a", peer_info_of(1));
  std::vector<std::string> warnings;
  EXPECT_FALSE(ServerRoll(client, ours)
                   .invite("g", ranks_of(2),
                           {.patience = kPatient,
                            .warn = [&](const std::string& text) { warnings.push_back(text); }})
                   .has_value());
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("Q7X2_SECRET"), std::string::npos) << warnings[0];
  try {
    seat.look();
    FAIL() << "it has read the invitation";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_NE(std::string(error.what()).find("Q7X2_SECRET"), std::string::npos) << error.what();
  }
}

TEST(ServerRoll, AListThatIsNoneIsRefused) {
  const std::string last = peer_info_of(1).encode();
  const std::string whole =
      ServerMeeting{
          .key = "k", .group = "g", .ranks = ranks_of(2), .servers = {{3, "a", peer_info_of(1)}}}
          .encode();
  EXPECT_EQ(ServerMeeting::decode(whole).servers[0].number, 3);
  for (size_t cut = 1; cut < last.size(); ++cut) {
    EXPECT_THROW(ServerMeeting::decode(whole.substr(0, whole.size() - cut)), Error) << cut;
  }
  for (const std::string ranks : {"5", "2000000000000", "-1", "x", ""}) {
    EXPECT_THROW(ServerMeeting::decode(encode_list({"k", "g", ranks, "", ""})), Error) << ranks;
  }
}

TEST(ServerRoll, ANameMustHaveCharacters) {
  SharedStore shared;
  Client client(shared);
  EXPECT_THROW(ServerSeat(client, JobSecret(""), "", peer_info_of(1)), Error);
  EXPECT_THROW(ServerSeat(client, JobSecret(""), std::string(300, 'a'), peer_info_of(1)), Error);
}

}  // namespace
}  // namespace q7x2
