// Combines several hooks: each bucket is divided among them, and they process their shares in
// lockstep.
//
// Each hook sees its share as a bucket of its own, and runs as if it were alone, up to its next
// collectives. The collectives of all hooks start together, in the same lane; when all are
// complete, all hooks continue. So a bucket takes as many phases as the hook with the most phases.
#include "comm_hooks/compress/composed.h"

#include <algorithm>
#include <utility>

namespace q7x2 {
namespace {

/// One hook's share of a bucket.
class Share final : public CollectiveSink {
 public:
  explicit Share(const Bucket& whole) : bucket(whole.part(*this)) {}

  void start(std::vector<HookCollective> collectives, Rest rest) override {
    waiting = std::move(collectives);
    left = rest;
  }
  void end() override {}  // the whole bucket has already waited

  Bucket bucket;
  Phases phases;
  std::vector<size_t> positions;  ///< its gradients' indices in the whole bucket
  std::vector<HookCollective> waiting;
  Rest left = Rest::kNone;
};

class ComposedHook final : public Hook {
 public:
  ComposedHook(const HookContext& context, const std::vector<MakeHook>& hooks,
               std::vector<size_t> owners)
      : Hook(context), owners_(std::move(owners)) {
    for (const MakeHook& make : hooks) hooks_.push_back(make(context));
  }

  size_t lanes() const override {
    size_t most = 0;
    for (const auto& hook : hooks_) most = std::max(most, hook->lanes());
    return most;
  }

  Phases reduce(Bucket& bucket) override {
    if (bucket.buffer.is_sparse() || bucket.gradients.empty()) {
      bucket.buffer.mul_(1.0 / context_.world_size);
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }
    std::vector<std::unique_ptr<Share>> shares = divide(bucket);
    while (true) {
      std::vector<HookCollective> collectives;
      Rest rest = Rest::kNone;
      for (const auto& share : shares) {
        if (share->phases.done()) continue;
        share->phases.resume();
        if (share->phases.done()) continue;
        std::ranges::move(share->waiting, std::back_inserter(collectives));
        if (share->left == Rest::kCollectives) rest = Rest::kCollectives;
      }
      if (collectives.empty()) break;
      co_await bucket.all(std::move(collectives), rest);
    }
    const PhaseTimer timer = bucket.time("unpack");
    for (const auto& share : shares) {
      if (share->bucket.buffer.is_same(bucket.buffer)) continue;
      for (size_t i = 0; i < share->positions.size(); ++i) {
        bucket.gradients[share->positions[i]].flat.copy_(share->bucket.gradients[i].flat);
      }
    }
    // Hooks without state do not check; the state of the other hooks depends on all gradients.
    if (!all_finite(bucket.buffer)) bucket.overflowed();
  }

  void check(size_t parameter, const ParameterPolicy& policy) const override {
    hooks_[owner_of(parameter)]->check(parameter, policy);
  }

  void commit() override {
    for (const auto& hook : hooks_) hook->commit();
  }

  void abort() override {
    for (const auto& hook : hooks_) hook->abort();
  }

  void rescale(double factor) override {
    for (const auto& hook : hooks_) hook->rescale(factor);
  }

  void save(HookState& shared, HookState& local) const override {
    for (size_t i = 0; i < hooks_.size(); ++i) {
      HookState its_shared;
      HookState its_local;
      hooks_[i]->save(its_shared, its_local);
      for (auto& [kind, tensors] : its_shared) shared[prefix(i) + kind] = std::move(tensors);
      for (auto& [kind, tensors] : its_local) local[prefix(i) + kind] = std::move(tensors);
    }
  }

  void load(const HookState& shared, const HookState& local) override {
    HookState shared_before;
    HookState local_before;
    save(shared_before, local_before);
    try {
      load_all(shared, local);
    } catch (...) {
      load_all(shared_before, local_before);
      throw;
    }
  }

 private:
  size_t owner_of(size_t parameter) const {
    return parameter < owners_.size() ? owners_[parameter] : hooks_.size() - 1;
  }

  void load_all(const HookState& shared, const HookState& local) {
    for (size_t i = 0; i < hooks_.size(); ++i) {
      hooks_[i]->load(of(shared, prefix(i)), of(local, prefix(i)));
    }
  }

  static std::string prefix(size_t hook) { return std::to_string(hook) + "."; }

  static HookState of(const HookState& state, const std::string& prefix) {
    HookState its;
    for (const auto& [kind, tensors] : state) {
      if (kind.starts_with(prefix)) its[kind.substr(prefix.size())] = tensors;
    }
    return its;
  }

  std::vector<std::unique_ptr<Share>> divide(const Bucket& bucket) {
    std::vector<std::unique_ptr<Share>> by_hook(hooks_.size());
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      const size_t number = bucket.gradients[i].parameter;
      auto& share = by_hook[owner_of(number)];
      if (!share) share = std::make_unique<Share>(bucket);
      share->positions.push_back(i);
    }
    std::vector<std::unique_ptr<Share>> shares;
    for (size_t hook = 0; hook < by_hook.size(); ++hook) {
      if (!by_hook[hook]) continue;
      Share& share = *shares.emplace_back(std::move(by_hook[hook]));
      if (share.positions.size() == bucket.gradients.size()) {
        share.bucket.buffer = bucket.buffer;
        share.bucket.gradients = bucket.gradients;
      } else {
        fill(share, bucket);
      }
      share.phases = hooks_[hook]->reduce(share.bucket);
    }
    return shares;
  }

  static void fill(Share& share, const Bucket& bucket) {
    const PhaseTimer timer = bucket.time("pack");
    std::vector<at::Tensor> flats;
    for (const size_t i : share.positions) flats.push_back(bucket.gradients[i].flat);
    share.bucket.buffer = at::cat(flats);
    int64_t offset = 0;
    for (const size_t i : share.positions) {
      const int64_t numel = bucket.gradients[i].flat.numel();
      share.bucket.gradients.push_back(
          {bucket.gradients[i].parameter, share.bucket.buffer.narrow(0, offset, numel)});
      offset += numel;
    }
  }

  const std::vector<size_t> owners_;
  std::vector<std::unique_ptr<Hook>> hooks_;
};

}  // namespace

std::unique_ptr<Hook> make_composed(const HookContext& context, const std::vector<MakeHook>& hooks,
                                    std::vector<size_t> owners) {
  return std::make_unique<ComposedHook>(context, hooks, std::move(owners));
}

}  // namespace q7x2
