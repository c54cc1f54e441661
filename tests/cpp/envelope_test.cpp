// Only messages of the job are taken, and only once.
#include "transport/trust/envelope.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

using Kind = Envelopes::Kind;

const JobSecret kSecret("a secret");
const Identity kMe = random_identity();
const Identity kPeer = random_identity();

TEST(Envelope, CarriesAMessageAndItsSender) {
  Envelopes peer(kSecret, kPeer);
  Envelopes me(kSecret, kMe);
  for (const std::string text : {"", "a", "a message of some length, with \0 in it"}) {
    const std::string bytes = peer.close(Kind::kControl, kMe, text);
    EXPECT_EQ(bytes.size(), Envelopes::kBytes + text.size());
    const auto opened = me.open(Kind::kControl, bytes);
    ASSERT_TRUE(opened);
    EXPECT_EQ(opened->sender, kPeer.process);
    EXPECT_EQ(opened->message, text);
  }
  EXPECT_EQ(me.refused(), 0U);
}

TEST(Envelope, AnyChangeIsRefused) {
  Envelopes peer(kSecret, kPeer);
  Envelopes me(kSecret, kMe);
  const std::string bytes = peer.close(Kind::kControl, kMe, "the group has failed");
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(me.open(Kind::kControl, changed)) << bit;
  }
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_FALSE(me.open(Kind::kControl, bytes.substr(0, length))) << length;
  }
  EXPECT_FALSE(me.open(Kind::kControl, bytes + '\0'));
  EXPECT_EQ(me.refused(), 9 * bytes.size() + 1);
  EXPECT_TRUE(me.open(Kind::kControl, bytes)) << "none of them has used its number";
}

TEST(Envelope, OtherSecretsKeysReceiversAndKindsAreRefused) {
  Envelopes me(kSecret, kMe);
  Envelopes stranger(JobSecret("another"), kPeer);
  EXPECT_FALSE(me.open(Kind::kControl, stranger.close(Kind::kControl, kMe, "x")));
  Envelopes without(JobSecret(""), kPeer);
  EXPECT_FALSE(me.open(Kind::kControl, without.close(Kind::kControl, kMe, "x")));
  Envelopes peer(kSecret, kPeer);
  Identity guessed = kMe;
  guessed.key = {};
  Envelopes guesser(kSecret, kPeer);
  EXPECT_FALSE(me.open(Kind::kControl, guesser.close(Kind::kControl, guessed, "x")));
  EXPECT_FALSE(me.open(Kind::kControl, peer.close(Kind::kControl, random_identity(), "x")));
  EXPECT_FALSE(me.open(Kind::kBootstrap, peer.close(Kind::kControl, kMe, "x")));
  EXPECT_FALSE(peer.open(Kind::kControl, peer.close(Kind::kControl, kMe, "x"))) << "reflected";
  EXPECT_TRUE(me.open(Kind::kControl, peer.close(Kind::kControl, kMe, "x")));
}

TEST(Envelope, AMessageIsTakenOnce) {
  Envelopes peer(kSecret, kPeer);
  Envelopes me(kSecret, kMe);
  std::vector<std::string> sent;
  for (int i = 0; i < 50; ++i) sent.push_back(peer.close(Kind::kControl, kMe, std::to_string(i)));
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::ranges::shuffle(sent, std::mt19937(seed));
  for (const std::string& each : sent) EXPECT_TRUE(me.open(Kind::kControl, each));
  for (const std::string& each : sent) EXPECT_FALSE(me.open(Kind::kControl, each));
  EXPECT_EQ(me.refused(), sent.size());
}

TEST(ReplayWindow, TakesEachNumberOnce) {
  ReplayWindow window;
  EXPECT_FALSE(window.accept(0));
  EXPECT_TRUE(window.accept(1));
  EXPECT_FALSE(window.accept(1));
  EXPECT_TRUE(window.accept(64));
  EXPECT_FALSE(window.accept(1));
  EXPECT_TRUE(window.accept(2));
  EXPECT_FALSE(window.accept(64));
  EXPECT_TRUE(window.accept(66));
  EXPECT_FALSE(window.accept(2)) << "64 behind";
  EXPECT_TRUE(window.accept(3));
  EXPECT_TRUE(window.accept(1000));
  EXPECT_FALSE(window.accept(66));
  EXPECT_TRUE(window.accept(~uint64_t{0}));
  EXPECT_FALSE(window.accept(~uint64_t{0}));
  EXPECT_TRUE(window.accept(~uint64_t{0} - 63));
}

TEST(ReplayWindow, AgreesWithAList) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  ReplayWindow window;
  std::vector<bool> seen(20'000);
  uint64_t highest = 0;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t number = std::max<int64_t>(
        1, static_cast<int64_t>(highest) + 10 - static_cast<int64_t>(random() % 90));
    const bool expected = number + ReplayWindow::kWidth > highest && !seen[number];
    ASSERT_EQ(window.accept(number), expected) << number << " after " << highest;
    seen[number] = true;
    highest = std::max(highest, number);
    if (highest + 20 >= seen.size()) break;
  }
}

TEST(JobSecret, ASealIsOfOnePlaceTextAndSecret) {
  const std::string sealed = kSecret.seal("peer_info/1/4", "text");
  EXPECT_EQ(kSecret.open("peer_info/1/4", sealed, "it"), "text");
  const auto refusal = [](const JobSecret& secret, const std::string& place,
                          const std::string& bytes) {
    try {
      secret.open(place, bytes, "the peer_info of rank 1");
      return std::string();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kMismatch);
      return std::string(error.what());
    }
  };
  EXPECT_NE(refusal(kSecret, "peer_info/2/4", sealed), "");
  EXPECT_NE(refusal(kSecret, "peer_info/1/4", sealed + "!"), "");
  EXPECT_NE(refusal(kSecret, "peer_info/1/4", ""), "");
  EXPECT_NE(refusal(kSecret, "peer_info/1/4", sealed.substr(0, 15)), "");
  const std::string set = refusal(JobSecret("another"), "peer_info/1/4", sealed);
  EXPECT_NE(set.find("the peer_info of rank 1"), std::string::npos) << set;
  EXPECT_NE(set.find("Q7X2_SECRET, which is set here, must be the same there"), std::string::npos)
      << set;
  const std::string unset = refusal(JobSecret(""), "peer_info/1/4", sealed);
  EXPECT_NE(unset.find("Q7X2_SECRET, which is not set here, must be unset there"),
            std::string::npos)
      << unset;
}

TEST(JobSecret, KeysDifferWithAllThatMakesThem) {
  const auto key = [](const JobSecret& secret, const Identity& to) { return secret.key_to(to); };
  Identity renamed = kMe;
  ++renamed.process;
  Identity other = kMe;
  other.key[0] ^= std::byte{1};
  EXPECT_EQ(key(kSecret, kMe), key(JobSecret("a secret"), kMe));
  EXPECT_NE(key(kSecret, kMe), key(JobSecret("a secret."), kMe));
  EXPECT_NE(key(kSecret, kMe), key(kSecret, renamed));
  EXPECT_NE(key(kSecret, kMe), key(kSecret, other));
  EXPECT_NE(random_identity().key, random_identity().key);
}

}  // namespace
}  // namespace q7x2
