// Doubt: which figures of a measured Fabric a busy machine may have falsified.
//
// A probe takes a second or less. If other processes run meanwhile, a figure may be ten times off,
// and nothing but its scatter tells. So a probe repeats what scatters (executor/probe/probe.cpp),
// and a Fabric that is doubtful in the end is not kept for long (fabric/catalogue.h).
#pragma once

#include <string>

#include "fabric/fabric.h"

namespace q7x2 {

/// The spread of repetitions of one measurement, divided by their median, from which on the
/// measurement is doubtful. Twice as long, or half as fast, is common.
constexpr double kDoubtfulSpread = 1;
inline bool is_doubtful(double spread) {
  return !(spread <= kDoubtfulSpread);
}

/// Why the Fabric is doubtful, for people; empty: it is not. Only measured figures count.
///
/// - memory: a message inside a host takes longer than 100 us, because its ranks had to wait for
///   processors
/// - network: more than a quarter of the pairs of hosts scatter by more than kDoubtfulSpread
/// - cores: one copies less than 100 MB per second
std::string doubt_of(const Fabric& fabric);

}  // namespace q7x2
