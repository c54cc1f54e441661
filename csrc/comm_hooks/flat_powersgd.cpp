// PowerSGD of a whole bucket: its gradients, one after the other, folded into one square matrix.
//
//   bytes     4 r sqrt(N) for 4 N, in two collectives, with factors in 16 bits
//   compute   4 N r multiply-adds a rank
//
// One matrix product a bucket, and fewer bytes than matrix by matrix, for an approximation that
// knows nothing of rows and columns: worth it where communication is all, and with residuals. It
// compresses vectors as well, and gradients that are shards of others.
//
// The basis belongs to the bucket: where DDP lays its buckets out anew, it starts anew.
// Vogels et al., "PowerSGD", 2019; `batched_powerSGD_hook` of PyTorch.
#include <cmath>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "comm_hooks/factor_message.h"
#include "comm_hooks/idle.h"
#include "comm_hooks/kept_tensors.h"
#include "comm_hooks/orthonormal.h"
#include "comm_hooks/powersgd.h"

namespace q7x2 {
namespace {

constexpr const char* kBasis = "basis_by_bucket";

/// Columns and rows of the smallest square that holds so many elements.
int64_t side_of(int64_t numel) {
  auto side = static_cast<int64_t>(std::ceil(std::sqrt(static_cast<double>(numel))));
  while (side * side < numel) ++side;
  return side;
}

class FlatPowerSgd final : public Hook {
 public:
  FlatPowerSgd(const HookContext& context, FlatPowerSgdOptions options)
      : Hook(context),
        options_(std::move(options)),
        kept_(context, kinds(options_), [this](size_t number) { return !is_absent(number); }) {}

  size_t lanes() const override { return 2; }

  Phases reduce(Bucket& bucket) override {
    const bool in_full = options_.full_precision.at(bucket.step);
    bucket.buffer.mul_(1.0 / context_.world_size);
    if ((in_full && !kept_.any()) || bucket.buffer.is_sparse() || bucket.gradients.empty()) {
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }
    at::Tensor matrix;  // M, padded with zeros
    std::vector<bool> idle;
    std::vector<size_t> order(bucket.gradients.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    KeptTensors::Piece& kept = kept_.piece(bucket, order);
    const int64_t side = side_of(bucket.buffer.numel());
    at::Tensor p;
    FactorMessage message;
    std::vector<HookCollective> sums;
    {
      const PhaseTimer timer = bucket.time("encode");
      idle = find_idle(bucket);
      matrix = load(bucket, kept, idle, side);
      if (in_full) {
        bucket.buffer.copy_(matrix.flatten().narrow(0, 0, bucket.buffer.numel()));
        settle(bucket, kept, idle, at::zeros_like(matrix));
      } else {
        p = at::mm(basis_of(bucket, side).t(), matrix.t()).t();
        const auto flags = static_cast<int64_t>(idle.size());
        message = FactorMessage(at::cat({uses_of(idle, p.options()), p.flatten()}), flags,
                                options_.factor_dtype);
        p = message.elements().narrow(0, flags, p.numel()).view_as(p);
        sums = message.sum();
      }
    }
    if (in_full) {
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }
    co_await bucket.all(std::move(sums), Rest::kCollectives);
    if (!message.receive()) {
      drop(bucket);
      co_return;
    }
    const std::vector<bool> unused =
        idle_everywhere(message.elements().narrow(0, 0, static_cast<int64_t>(idle.size())));
    at::Tensor q;
    {
      const PhaseTimer timer = bucket.time("project");
      make_orthonormal(p.unsqueeze(0));
      q = at::mm(p.t(), matrix).t().contiguous();
      message = FactorMessage(q.flatten(), 0, options_.factor_dtype);
      sums = message.sum();
    }
    co_await bucket.all(std::move(sums), Rest::kNone);
    if (!message.receive()) {
      drop(bucket);
      co_return;
    }
    const PhaseTimer timer = bucket.time("decode");
    const at::Tensor mean = at::mm(p, q.t());
    const at::Tensor flat = mean.flatten().narrow(0, 0, bucket.buffer.numel());
    for (size_t i = 0; i < unused.size(); ++i) {
      const auto& [first, length] = kept.places[i];
      if (unused[i]) flat.narrow(0, first, length).zero_();
    }
    settle(bucket, kept, idle, matrix.sub_(mean, 1.0 / context_.world_size));
    bucket.buffer.copy_(flat);
    if (!fits(bucket.buffer)) bucket.overflowed();
    const at::Tensor is_used = q.ne(0).any();  // else no rank used the bucket: its basis stays
    make_orthonormal(q.unsqueeze(0));
    next_bases_[bucket.index] = at::where(is_used, q, bases_[bucket.index]);
  }

  void end_step(bool keep) override {
    kept_.end_step(keep);
    if (keep && options_.warm_start) {
      for (auto& [index, basis] : next_bases_) bases_[index] = std::move(basis);
    }
    if (keep && !next_bases_.empty()) ++iterations_;
    next_bases_.clear();
  }

  void rescale(double factor) override { kept_.rescale(factor); }

  void save(HookState& shared, HookState& local) const override {
    kept_.save(shared, local);
    shared[kBasis];  // a checkpoint is loaded into what a new hook has
    for (const auto& [index, basis] : bases_) shared[kBasis][std::to_string(index)] = basis.clone();
    shared["iterations"]["count"] = at::scalar_tensor(static_cast<int64_t>(iterations_), at::kLong);
  }

  void load(const HookState& shared, const HookState& local) override {
    kept_.load(shared, local);
    bases_.clear();
    const auto bases = shared.find(kBasis);
    if (bases != shared.end()) {
      for (const auto& [index, basis] : bases->second) bases_[std::stoul(index)] = basis.clone();
    }
    const auto iterations = shared.find("iterations");
    iterations_ = iterations == shared.end()
                      ? 0
                      : static_cast<uint64_t>(iterations->second.at("count").item<int64_t>());
  }

 private:
  bool is_absent(size_t number) const {
    return number < options_.absent.size() && options_.absent[number];
  }

  static std::vector<KeptTensors::Kind> kinds(const FlatPowerSgdOptions& options) {
    if (!options.error_feedback) return {};
    return {{"residual", false}};
  }

  const at::Tensor& basis_of(const Bucket& bucket, int64_t side) {
    at::Tensor& basis = bases_[bucket.index];
    if (options_.warm_start && basis.defined() && basis.size(0) == side) return basis;
    at::Generator generator = at::detail::createCPUGenerator(
        options_.seed + bucket.index +
        0x9e3779b97f4a7c15U * (options_.warm_start ? 0 : iterations_));
    const int64_t rank = std::min(options_.rank, side);
    basis = at::randn({side, rank}, generator, at::kFloat).to(bucket.buffer.device());
    make_orthonormal(basis.unsqueeze(0));
    return basis;
  }

  std::vector<bool> find_idle(const Bucket& bucket) const {
    std::vector<bool> idle;
    for (const Gradient& gradient : bucket.gradients) {
      idle.push_back(options_.error_feedback && all_zero(gradient.flat));
    }
    return idle;
  }

  /// This rank's contribution to the mean, and what it still owed.
  at::Tensor load(const Bucket& bucket, const KeptTensors::Piece& kept,
                  const std::vector<bool>& idle, int64_t side) const {
    at::Tensor flat = at::zeros({side * side}, bucket.buffer.options().dtype(at::kFloat));
    const at::Tensor used = flat.narrow(0, 0, bucket.buffer.numel());
    used.copy_(bucket.buffer);
    for (size_t i = 0; options_.error_feedback && i < idle.size(); ++i) {
      const auto& [first, length] = kept.places[i];
      if (!idle[i]) used.narrow(0, first, length).add_(kept.now[0].narrow(0, first, length));
    }
    return flat.view({side, side});
  }

  void settle(const Bucket& bucket, const KeptTensors::Piece& kept, const std::vector<bool>& idle,
              const at::Tensor& left) const {
    if (!options_.error_feedback) return;
    kept.next[0].copy_(left.flatten().narrow(0, 0, bucket.buffer.numel()));
    for (size_t i = 0; i < idle.size(); ++i) {
      if (!idle[i]) continue;
      const auto& [first, length] = kept.places[i];
      kept.next[0].narrow(0, first, length).add_(kept.now[0].narrow(0, first, length));
    }
  }

  /// GradScaler finds in the gradients what the hook found in the messages.
  static void drop(Bucket& bucket) {
    bucket.buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    bucket.overflowed();
  }

  const FlatPowerSgdOptions options_;
  KeptTensors kept_;
  std::map<size_t, at::Tensor> bases_;  // Q, orthonormal, by index of the bucket
  std::map<size_t, at::Tensor> next_bases_;
  uint64_t iterations_ = 0;  // steps that moved a basis
};

}  // namespace

std::unique_ptr<Hook> make_flat_powersgd(const HookContext& context, FlatPowerSgdOptions options) {
  return std::make_unique<FlatPowerSgd>(context, std::move(options));
}

}  // namespace q7x2
