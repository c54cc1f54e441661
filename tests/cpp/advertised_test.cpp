// Q7X2_ADVERTISE: what it may be, and what it says.
#include "transport/net/advertised.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/error.h"

namespace q7x2 {
namespace {

class AdvertisedTest : public ::testing::Test {
 protected:
  void TearDown() override {
    ::unsetenv("Q7X2_ADVERTISE");
    ::unsetenv("LOCAL_RANK");
  }

  static Advertised of(const std::string& text, const char* local_rank = nullptr) {
    ::setenv("Q7X2_ADVERTISE", text.c_str(), 1);
    local_rank == nullptr ? ::unsetenv("LOCAL_RANK") : ::setenv("LOCAL_RANK", local_rank, 1);
    return Advertised::of_environment();
  }
};

TEST_F(AdvertisedTest, NothingIsTranslatedByDefault) {
  EXPECT_FALSE(Advertised::of_environment().behind_nat);
  EXPECT_FALSE(of("").behind_nat);
}

TEST_F(AdvertisedTest, NoneLeadsNowhere) {
  const Advertised none = of("none");
  EXPECT_TRUE(none.behind_nat);
  EXPECT_TRUE(none.outside.empty());
  EXPECT_EQ(none.port, 0);
}

TEST_F(AdvertisedTest, AnAddressWithAndWithoutAPort) {
  const std::vector<IpAddress> v4{IpAddress::v4(0xcb007105)};
  EXPECT_EQ(of("203.0.113.5").outside, v4);
  EXPECT_EQ(of("203.0.113.5").port, 0);
  EXPECT_EQ(of("203.0.113.5:31000").outside, v4);
  EXPECT_EQ(of("203.0.113.5:31000").port, 31000);
  for (const char* v6 : {"fd77::5", "[fd77::5]"}) {
    ASSERT_EQ(of(v6).outside.size(), 1U) << v6;
    EXPECT_EQ(of(v6).outside.front().text(), "fd77::5");
    EXPECT_EQ(of(v6).port, 0);
  }
  EXPECT_EQ(of("[fd77::5]:31000").outside.front().text(), "fd77::5");
  EXPECT_EQ(of("[fd77::5]:31000").port, 31000);
  EXPECT_TRUE(of("localhost:31000").outside.front().is_loopback());
}

TEST_F(AdvertisedTest, EachProcessOfAHostHasItsPort) {
  EXPECT_EQ(of("203.0.113.5:31000", "0").port, 31000);
  EXPECT_EQ(of("203.0.113.5:31000", "3").port, 31003);
  EXPECT_EQ(of("203.0.113.5", "3").port, 0);
}

TEST_F(AdvertisedTest, RefusesWhatCannotBe) {
  for (const char* text :
       {":31000", "203.0.113.5:", "203.0.113.5:0", "203.0.113.5:65536", "203.0.113.5:x", "[fd77::5",
        "[fd77::5]31000", "[]:31000", "no such name", "None", "-"}) {
    try {
      of(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << text;
      EXPECT_NE(std::string(error.what()).find("Q7X2_ADVERTISE=" + std::string(text) + ": "),
                std::string::npos)
          << error.what();
    }
  }
  EXPECT_THROW(of("203.0.113.5:65535", "1"), Error);
  EXPECT_THROW(of("203.0.113.5:31000", "x"), Error);
}

}  // namespace
}  // namespace q7x2
