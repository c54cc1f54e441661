// How the ranks gather along the tree, and what a rank does about its children meanwhile.
#include <algorithm>

#include "transport/bootstrap/gather_tree.h"
#include "transport/bootstrap/rendezvous.h"
#include "transport/bootstrap/rendezvous_records.h"

namespace q7x2 {

/// `own` and what all ranks below this one have published as `what`. A rank publishes its own entry
/// before it calls this, so that others can tell who is missing. Nothing where `look` says that it
/// is pointless.
std::optional<std::string> Rendezvous::gather(const std::string& what, const std::string& own,
                                              const Look& look) {
  if (children_.empty()) {
    return own;
  }
  std::vector<std::string> keys;
  for (const int child : children_) {
    const bool leaf = !has_children(child, options_.size, options_.branches);
    keys.push_back(key(leaf ? what : what + "/below", child));
  }
  if (!wait(keys, look, what, members())) {
    return std::nullopt;
  }
  std::string bundle = own;
  for (const std::string& part : store_.get(keys)) {
    bundle += part;
  }
  if (options_.rank != 0) {
    store_.set(key(what + "/below", options_.rank), bundle);
  }
  return bundle;
}

/// This rank has come to `what`. The last of all ranks but rank 0 publishes `all`.
void Rendezvous::count(const std::string& what, const std::string& all) {
  if (store_.add(key(what), 1) == options_.size - 1) {
    store_.set(key(all), "");
  }
  store_.set(key(what, options_.rank), "");  // who has none yet is missing
}

/// What a process has published as `rank` last.
std::optional<JoinRecord> Rendezvous::joined(int rank) {
  const std::string name = key("join", rank);
  if (!store_.check(name)) {
    return std::nullopt;
  }
  const auto records = records_of(store_.get({name}).front());
  return records.contains(rank) ? std::optional(records.at(rank)) : std::nullopt;
}

bool Rendezvous::child_was_replaced(const Roster& roster) {
  for (const int child : children_) {
    const auto before = roster.find(child);
    const auto now = joined(child);
    if (now && before != roster.end() && now->nonce != before->second.nonce) {
      return true;
    }
  }
  return false;
}

/// Ranks that were told different world sizes have different trees, and would wait for each other.
void Rendezvous::report_bad_children() {
  for (const int child : children_) {
    const auto entry = joined(child);
    if (entry && entry->size != options_.size && reported_.insert(entry->nonce).second) {
      const JoinRecord own{nonce_, options_.size, {}, ""};
      store_.set(key("bad"),
                 encode_entry(options_.rank, own.encode()) + encode_entry(child, entry->encode()));
      spread_news();
    }
  }
}

/// Throws where the entry of `rank` rules the group out.
void Rendezvous::judge(int rank, const JoinRecord& entry) {
  if (entry.failure) {
    coming_ = options_.size;
    throw Error(*entry.failure);
  }
  if (entry.size != options_.size) {
    coming_ = std::min(options_.size, entry.size);
    throw error(ErrorCode::kMismatch,
                "rank " + std::to_string(rank) + " was told a world size of " +
                    std::to_string(entry.size) + ", rank 0 of " + std::to_string(options_.size),
                rank);
  }
}

/// Rank 0: throws where its children, or what others report, rule the group out.
void Rendezvous::judge_reports() {
  for (const int child : children_) {
    if (const auto entry = joined(child)) {
      judge(child, *entry);
    }
  }
  if (store_.check(key("bad"))) {
    for (const auto& [rank, entry] : records_of(store_.get({key("bad")}).front())) {
      judge(rank, entry);
    }
  }
}

}  // namespace q7x2
