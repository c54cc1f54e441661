#include "servers/credit_grant.h"

#include <algorithm>
#include <utility>

#include "transport/ucx/tag.h"

namespace q7x2 {
namespace {

constexpr uint32_t kGrantTag = 0x7102;
/// The fingerprint of every grant: they do not differ.
constexpr uint64_t kFingerprint = 0x5107;

}  // namespace

CreditGrant::CreditGrant(std::shared_ptr<Group> servers, int ranks, uint8_t own,
                         std::chrono::milliseconds timeout)
    : Task(std::move(servers), timeout),
      ranks_(ranks),
      words_(static_cast<size_t>(group().world_size() - ranks), kMostSlots),
      own_(own) {}

size_t CreditGrant::slots() const {
  return is_wanted() ? std::min(own_, *std::ranges::min_element(words_)) : 0;
}

bool CreditGrant::is_wanted() const {
  return own_ != kUnwanted && std::ranges::find(words_, kUnwanted) == words_.end();
}

std::string CreditGrant::name() const {
  return "slots of servers in group '" + group().membership().name() + "'";
}

void CreditGrant::start(Locked& locked) {
  group().agreement().remember(locked, sequence(), kFingerprint);
  const int me = group().rank();
  const auto others = static_cast<size_t>(group().world_size() - 1);
  pending_ = me < ranks_ ? words_.size() : words_.size() - 1 + others;
  for (int member = 0; member < group().world_size(); ++member) {
    if (is_over(locked)) return;
    if (member == me) continue;
    const auto token = static_cast<uint32_t>(member);
    if (member >= ranks_) {
      group().messages().receive(locked, *this, token, member,
                                 tag::point_to_point(group().slot(), member, kGrantTag),
                                 tag::kExact, &words_[static_cast<size_t>(member - ranks_)], 1);
    }
    if (me >= ranks_) {
      group().messages().send(locked, *this, token, member, tag::point_to_point(0, me, kGrantTag),
                              &own_, 1);
    }
  }
}

void CreditGrant::completed(Locked& locked, uint32_t, size_t, uint64_t) {
  if (--pending_ == 0) finish(locked);
}

void CreditGrant::end_group(Locked& locked, const Error& error) {
  fail(locked, error);
  group().fail(locked, error);
}

}  // namespace q7x2
