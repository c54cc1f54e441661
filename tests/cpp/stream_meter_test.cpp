// The rate of a stream, from timings as they come about on quiet, shaped and overloaded machines.
#include "executor/probe/stream_meter.h"

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>

#include <gtest/gtest.h>

namespace q7x2 {
namespace {

constexpr double kSeconds = 0.19;
constexpr double kRate = 25e6;
constexpr size_t kMessage = size_t{16} << 10;
constexpr double kPerMessage = static_cast<double>(kMessage) / kRate;
constexpr size_t kWindow = size_t{64} << 10;

/// A meter that is told of times in seconds.
class Clocked {
 public:
  /// `messages` evenly from `from` on, `apart` seconds each.
  Clocked& even(double from, int messages, double apart) {
    for (int i = 0; i < messages; ++i) pass(from + i * apart);
    return *this;
  }
  Clocked& pass(double time, size_t bytes = kMessage) {
    meter.passed(
        TimePoint(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(time))),
        bytes);
    return *this;
  }

  StreamMeter meter{kSeconds};
};

TEST(StreamMeter, OfASteadyStreamAllRatesAgree) {
  const StreamMeter meter = Clocked().even(0, 290, kPerMessage).meter;
  EXPECT_NEAR(meter.steady_rate(), kRate, 0.01 * kRate);
  EXPECT_NEAR(meter.whole_rate(), kRate, 0.01 * kRate);
  EXPECT_LT(meter.spread(), 0.01);
}

TEST(StreamMeter, TheBurstOfAShapedLinkIsLeftOut) {
  const StreamMeter meter = Clocked().even(0, 8, 1e-5).even(1e-4, 290, kPerMessage).meter;
  EXPECT_NEAR(meter.steady_rate(), kRate, 0.01 * kRate);
  EXPECT_GT(meter.whole_rate(), 1.02 * kRate);
}

TEST(StreamMeter, TheBurstIsWhatIsAheadOfTheSteadyRate) {
  const StreamMeter shaped = Clocked().even(0, 9, 1e-5).even(kPerMessage, 290, kPerMessage).meter;
  EXPECT_NEAR(shaped.burst(), 8.0 * kMessage, kMessage / 4.0);
  const StreamMeter steady = Clocked().even(0, 290, kPerMessage).meter;
  EXPECT_LT(steady.burst(), kMessage / 4.0);
  const StreamMeter slow_start = Clocked().even(0, 8, 5e-3).even(5e-2, 290, kPerMessage).meter;
  EXPECT_EQ(slow_start.burst(), 0);
  EXPECT_EQ(StreamMeter(kSeconds).burst(), 0);
  EXPECT_EQ(Clocked().pass(1).meter.burst(), 0);
}

TEST(StreamMeter, APauseCountsInOnePart) {
  const StreamMeter meter =
      Clocked().even(0, 180, kPerMessage).even(180 * kPerMessage + 0.1, 110, kPerMessage).meter;
  EXPECT_NEAR(meter.steady_rate(), kRate, 0.01 * kRate);
  EXPECT_GT(meter.spread(), 0.5);
}

// The sender is kept from running, at random, while up to two of five parts pass. The others
// jitter.
TEST(StreamMeter, PausesInTwoPartsChangeTheRateByNoMoreThanTheJitter) {
  constexpr int kMessages = 290;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> jitter(0.9, 1.1);
    std::exponential_distribution<double> pause(1 / 0.05);
    std::array<int, 2> hit{};  // before which message a pause lies
    for (int& each : hit) each = std::uniform_int_distribution<int>(0, kMessages - 1)(random);
    Clocked stream;
    double time = 0;
    for (int i = 0; i < kMessages; ++i) {
      time += kPerMessage * jitter(random);
      for (const int each : hit) {
        if (i == each) time += pause(random);
      }
      stream.pass(time);
    }
    EXPECT_NEAR(stream.meter.steady_rate(), kRate, 0.11 * kRate) << "seed " << seed;
  }
}

// Between far hosts, over links on which one message takes from a part of a round trip to many.
TEST(StreamMeter, BetweenFarHostsTheRateIsThatOfTheMessages) {
  for (const double round_trip : {6e-3, 100e-3}) {
    for (const double apart : {1e-3, 30e-3, 65e-3, 262e-3, 1.0}) {
      StreamMeter meter(kSeconds, round_trip);
      for (int i = 0; i < 12; ++i) {
        const std::chrono::duration<double> time(i * apart);
        meter.passed(TimePoint(std::chrono::duration_cast<Clock::duration>(time)), kMessage);
      }
      const double rate = static_cast<double>(kMessage) / apart;
      EXPECT_NEAR(meter.steady_rate(), rate, 0.01 * rate) << round_trip << " " << apart;
      EXPECT_LT(meter.spread(), 0.01) << round_trip << " " << apart;
    }
  }
}

// What several connections carry arrives in bursts: one of them waits for a lost packet, and all
// that the others brought meanwhile follows at once.
TEST(StreamMeter, BurstsBetweenFarHostsDoNotMakeARate) {
  constexpr double kRoundTrip = 0.1;
  for (const double pause : {0.02, 0.09, 0.15, 0.25}) {
    StreamMeter meter(kSeconds, kRoundTrip);
    const auto burst = static_cast<int>(pause / kPerMessage);
    for (int round = 0; round < 40; ++round) {
      for (int i = 0; i < burst; ++i) {
        const std::chrono::duration<double> time(round * pause + i * 1e-6);
        meter.passed(TimePoint(std::chrono::duration_cast<Clock::duration>(time)), kMessage);
      }
    }
    EXPECT_NEAR(meter.steady_rate(), kRate, 0.1 * kRate) << pause;
    EXPECT_LT(meter.spread(), 1.2) << pause;
  }
}

TEST(StreamMeter, NothingHasNoRate) {
  EXPECT_EQ(StreamMeter(kSeconds).steady_rate(), 0);
  EXPECT_EQ(StreamMeter(kSeconds).whole_rate(), 0);
  const StreamMeter one = Clocked().pass(1).meter;
  EXPECT_EQ(one.steady_rate(), 0);
  EXPECT_EQ(one.whole_rate(), 0);
  EXPECT_EQ(one.spread(), 0);
  EXPECT_EQ(confirmed_rate(0, 0), 0);
}

// The receiver does not run until the sender's time is nearly over; then it finds one window in its
// memory, and reads it in 80 us.
TEST(StreamMeter, AReceiverThatWokeUpLateDoesNotCount) {
  const StreamMeter arrivals = Clocked().even(0.2, 4, 2e-5).meter;
  const StreamMeter acknowledgements = Clocked().pass(0.01).even(0.2, 4, 2e-5).meter;
  EXPECT_GT(arrivals.steady_rate(), 700e6);
  EXPECT_LT(confirmed_rate(arrivals.steady_rate(), acknowledgements.whole_rate()), kRate);
}

// The receiver runs for a moment every 30 ms, and each time finds what the window lets through.
TEST(StreamMeter, AReceiverThatStuttersDoesNotCount) {
  Clocked arrivals;
  Clocked acknowledgements;
  for (double time = 0; time < kSeconds; time += 0.03) {
    arrivals.even(time, static_cast<int>(kWindow / kMessage), 1e-5);
    acknowledgements.even(time + 1e-3, static_cast<int>(kWindow / kMessage), 1e-5);
  }
  EXPECT_LT(confirmed_rate(arrivals.meter.steady_rate(), acknowledgements.meter.whole_rate()),
            kRate);
}

// The sender does not run, and then finds all acknowledgements at once: what it saw is low, but
// what the receiver saw meanwhile is no better than what passed.
TEST(StreamMeter, ASenderThatWasKeptFromSendingMakesNoRate) {
  const StreamMeter arrivals = Clocked().even(0, 4, 1e-5).even(0.19, 4, 1e-5).meter;
  const StreamMeter acknowledgements = Clocked().pass(0.001).even(0.19, 7, 1e-5).meter;
  EXPECT_GT(arrivals.steady_rate(), 10 * kRate);
  EXPECT_LT(confirmed_rate(arrivals.steady_rate(), acknowledgements.whole_rate()), kRate);
}

TEST(StreamMeter, AStreamThatBeganSlowlyKeepsItsSteadyRate) {
  const StreamMeter arrivals = Clocked().even(0, 8, 5e-5).even(5e-4, 150, 1.5e-5).meter;
  const StreamMeter acknowledgements = Clocked().even(0, 8, 5e-5).even(5e-4, 150, 1.5e-5).meter;
  EXPECT_DOUBLE_EQ(confirmed_rate(arrivals.steady_rate(), acknowledgements.whole_rate()),
                   arrivals.steady_rate());
}

}  // namespace
}  // namespace q7x2
