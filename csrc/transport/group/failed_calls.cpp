#include "transport/group/failed_calls.h"

#include <algorithm>

#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

// For messages that may arrive after the confirmation, or without one: over private links, and from
// ranks that were not told.
constexpr uint64_t kRemembered = 512;
static_assert(kRemembered < tag::kSequenceCycle / 2);

}  // namespace

void FailedCalls::add(uint64_t number, const Error& error, const std::set<int>& told) {
  calls_.try_emplace(number, Call{error, told, told});
}

const Error* FailedCalls::find(uint64_t number) const {
  const auto found = calls_.find(number);
  return found == calls_.end() ? nullptr : &found->second.error;
}

bool FailedCalls::is_forgotten(uint64_t number, uint64_t begun) const {
  return number + kRemembered < begun && !calls_.contains(number);
}

bool FailedCalls::confirm(uint64_t number, int rank) {
  const auto found = calls_.find(number);
  if (found == calls_.end()) return true;
  found->second.unconfirmed.erase(rank);
  return !found->second.told.insert(rank).second;
}

void FailedCalls::forget_rank(int rank) {
  for (auto& [number, call] : calls_) call.unconfirmed.erase(rank);
}

uint64_t FailedCalls::oldest_unconfirmed() const {
  const auto found = std::ranges::find_if(
      calls_, [](const auto& each) { return !each.second.unconfirmed.empty(); });
  return found == calls_.end() ? kNone : found->first;
}

std::set<int> FailedCalls::unconfirmed_by() const {
  const auto found = calls_.find(oldest_unconfirmed());
  return found == calls_.end() ? std::set<int>() : found->second.unconfirmed;
}

void FailedCalls::prune(uint64_t begun) {
  std::erase_if(calls_, [&](const auto& each) {
    return each.first + kRemembered < begun && each.second.unconfirmed.empty();
  });
}

}  // namespace q7x2
