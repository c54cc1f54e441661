// The orders of threads in which every kernel is tried.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>

#include <gtest/gtest.h>

#include "fibres/grid.h"

namespace q7x2::fibres::test {

/// Q7X2_FIBRES_SEED, or another one each time. Printed once.
inline uint64_t random_order_seed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("Q7X2_FIBRES_SEED");
    const uint64_t value =
        given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
    std::printf("random order of threads: Q7X2_FIBRES_SEED=%llu\n",
                static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

/// Calls `run` once with each order.
template <class Run>
void in_all_orders(Run run) {
  for (const Order::Kind kind :
       {Order::Kind::kForward, Order::Kind::kBackward, Order::Kind::kRandom}) {
    const Order order = {kind, kind == Order::Kind::kRandom ? random_order_seed() : 0};
    SCOPED_TRACE("order " + std::to_string(static_cast<int>(kind)) + ", seed " +
                 std::to_string(order.seed));
    const WithOrder with_order(order);
    run();
  }
}

}  // namespace q7x2::fibres::test
