// What the checker can prove about the Plans without running them.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/check/checker_group.h"

namespace q7x2::checker {

/// Checks one rank's Plan: it is for the group's request, its ops name existing blocks and use them
/// correctly, its DAG has no cycle, no two ops race, no part is encoded twice, and scratch and
/// stages are within their bounds.
void check_structure(const CheckedGroup& group, int rank);

/// [rank][send or receive]: the op at the other end. Each has exactly one.
using Matches = std::vector<std::vector<size_t>>;
Matches match_messages(const CheckedGroup& group);
/// Checks only the messages from one rank to another, and returns nothing.
void check_messages(const CheckedGroup& group, int from, int to);

}  // namespace q7x2::checker
