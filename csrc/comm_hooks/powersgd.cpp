// PowerSGD: one step of power iteration a training step, started from where the last one ended.
//
// The gradient of a weight is a matrix M, n x m, and most of it lies in few directions. With an
// m x r matrix Q of orthonormal columns, and sums over the ranks,
//
//   P = orthonormal(sum M Q)     n x r, one all-reduce
//   Q' = sum M^T P               m x r, one all-reduce
//   mean of the gradients ~ P Q'^T,   next Q = orthonormal(Q')
//
// Both products are linear in M, so they are summed on the way like any gradient, by any algorithm.
// What P Q'^T leaves out stays on its rank, the residual, and is added to the next gradient: a rank
// keeps M and the factors, and takes their product off M where it adds the next gradient. That
// saves a pass over the matrices, and at the end of a step only the gradients are waited for.
//
//   bytes     2 r (n + m) for 4 n m, with factors in 16 bits; vectors and small matrices travel
//             whole, at the same time as P
//   compute   4 n m r multiply-adds a rank, in three passes over M (kernels/low_rank.h)
//
// `alternating` takes only one of the two products a step: M Q now, M^T P with the P it gave in the
// next step. One collective a step and half of the bytes, for a basis that follows the gradients
// half as fast; with error feedback that is hardly worse.
//
// It wins wherever the network is slower than three passes over the gradients, for matrices of low
// rank, which those of dense layers are. Embeddings of rare tokens are not.
// Vogels, Karimireddy, Jaggi, "PowerSGD: practical low-rank gradient compression for distributed
// optimization", 2019.
#include "comm_hooks/powersgd.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include "base/error.h"
#include "comm_hooks/factor_message.h"
#include "comm_hooks/orthonormal.h"
#include "kernels/low_rank.h"

namespace q7x2 {
namespace {

/// FNV-1a, which is the same everywhere.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return hash;
}

/// n x m and the rank of its approximation.
struct MatrixShape {
  int64_t n = 0;
  int64_t m = 0;
  int64_t rank = 0;  ///< 0: sent whole
};

/// Of all matrices of a stack; undefined: their product is 0.
struct Factors {
  at::Tensor left;   ///< [members, n, rank]
  at::Tensor right;  ///< [members, rank, m]
};

/// Matrices of one shape in one bucket, stacked, so that one operation does all of them.
struct Stack {
  MatrixShape shape;
  std::vector<size_t> members;  ///< positions in the bucket's gradients
  // The residual: M, less this rank's share of the product that all ranks have applied.
  at::Tensor owed;  ///< M, [members, n, m]
  Factors paid;
  at::Tensor basis;  ///< [members, m or n, rank], orthonormal: Q, or P
  at::Tensor other_basis;  ///< the last one of the other side; of `alternating` only
  // Of the step in flight; they take the places of the three above when it is kept.
  at::Tensor next_owed;
  Factors next_paid;
  at::Tensor next_basis;
  std::vector<bool> is_idle;  ///< members whose gradient on this rank is zero
};

/// How the hook has divided one bucket, while DDP keeps that bucket as it is.
struct Layout {
  std::vector<size_t> parameters;
  std::vector<std::shared_ptr<Stack>> stacks;
  std::vector<size_t> whole;  ///< positions of gradients that are not compressed
  int64_t whole_numel = 0;
  bool used = false;         ///< in this step
  bool moves_basis = false;  ///< in this step
};

class PowerSgd final : public Hook {
 public:
  PowerSgd(const HookContext& context, PowerSgdOptions options)
      : Hook(context), options_(std::move(options)) {}

  size_t lanes() const override { return options_.alternating ? 1 : 2; }

  Phases reduce(Bucket& bucket) override {
    const bool is_whole = options_.full_precision.at(bucket.step) && !has_residuals_;
    if (is_whole || bucket.buffer.is_sparse() || bucket.gradients.empty()) {
      bucket.buffer.mul_(share());
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }
    Layout& layout = layout_of(bucket);
    layout.used = true;
    if (options_.full_precision.at(bucket.step)) {
      // Nothing stays behind: the residuals leave with the gradients.
      {
        const PhaseTimer timer = bucket.time("encode");
        bucket.buffer.mul_(share());
        for (const auto& stack : layout.stacks) add_residuals(*stack, bucket);
      }
      co_await bucket.all_reduce(bucket.buffer, Rest::kNone);
      if (!all_finite(bucket.buffer)) bucket.overflowed();
      co_return;
    }

    FactorMessage message;
    std::vector<at::Tensor> first;  // P of each stack, or Q' where it is its turn
    std::vector<HookCollective> sums;
    {
      const PhaseTimer timer = bucket.time("encode");
      message = new_message(bucket, layout, layout.whole_numel, first_is_left(), first);
      pack_whole(bucket, layout, message.elements());
      for (size_t i = 0; i < layout.stacks.size(); ++i) {
        Stack& stack = *layout.stacks[i];
        if (!options_.warm_start) randomise(stack, bucket);
        find_idle(stack, bucket);
        load_and_multiply(stack, bucket, first_is_left(), first[i]);
      }
      sums = message.sum();
    }
    const bool ends_here = options_.alternating || layout.stacks.empty();
    co_await bucket.all(std::move(sums), ends_here ? Rest::kNone : Rest::kCollectives);
    if (!message.receive()) {
      drop(bucket);
      co_return;
    }
    if (ends_here) {
      {
        const PhaseTimer timer = bucket.time("decode");
        unpack_whole(bucket, layout, message.elements());
        for (size_t i = 0; i < layout.stacks.size(); ++i) {
          Stack& stack = *layout.stacks[i];
          const bool left = first_is_left();
          decode(stack, bucket, left ? first[i] : stack.basis, left ? stack.basis : first[i]);
        }
      }
      if (!fits(bucket.buffer)) bucket.overflowed();
      bucket.reduced();
      move_bases(bucket, layout, first);
      co_return;
    }

    FactorMessage second_message;
    std::vector<at::Tensor> second;
    {
      const PhaseTimer timer = bucket.time("orthonormalise");
      for (const at::Tensor& p : first) make_orthonormal(p);
    }
    {
      const PhaseTimer timer = bucket.time("project");
      second_message = new_message(bucket, layout, 0, false, second);
      for (size_t i = 0; i < layout.stacks.size(); ++i) {
        multiply(layout.stacks[i]->next_owed, first[i], false, second[i]);
      }
      sums = second_message.sum();
    }
    co_await bucket.all(std::move(sums), Rest::kNone);
    if (!second_message.receive()) {
      drop(bucket);
      co_return;
    }
    {
      const PhaseTimer timer = bucket.time("decode");
      unpack_whole(bucket, layout, message.elements());
      for (size_t i = 0; i < layout.stacks.size(); ++i) {
        decode(*layout.stacks[i], bucket, first[i], second[i]);
      }
    }
    if (!fits(bucket.buffer)) bucket.overflowed();
    bucket.reduced();
    move_bases(bucket, layout, second);
  }

  void end_step(bool keep) override {
    bool moved = false;
    for (auto entry = layouts_.begin(); entry != layouts_.end();) {
      Layout& layout = entry->second;
      if (!layout.used) {  // DDP has fewer buckets now
        entry = layouts_.erase(entry);
        continue;
      }
      for (const auto& stack : layout.stacks) {
        if (keep) {
          if (options_.error_feedback) {
            std::swap(stack->owed, stack->next_owed);
            stack->paid = std::move(stack->next_paid);
          }
          if (layout.moves_basis) {
            std::swap(stack->basis, stack->next_basis);
            if (options_.alternating) stack->other_basis = stack->next_basis;
          }
        }
        stack->next_paid = {};
        stack->next_basis.reset();
      }
      moved |= layout.moves_basis;
      has_residuals_ |= keep && layout.moves_basis && options_.error_feedback;
      layout.used = layout.moves_basis = false;
      ++entry;
    }
    if (keep && moved) ++iterations_;
  }

  void rescale(double factor) override {
    for (const Place& place : places_) {
      if (place.stack && place.stack->owed.defined()) residual_of(place).mul_(factor);
    }
  }

  void save(HookState& shared, HookState& local) const override {
    for (size_t number = 0; number < context_.parameters.size(); ++number) {
      const auto& name = context_.parameters[number].name;
      const auto& shape = context_.parameters[number].shape;
      const MatrixShape matrix = shape_of(number);
      if (matrix.rank == 0) continue;
      const bool is_known = number < places_.size() && places_[number].stack;
      if (options_.warm_start) {
        const at::Tensor basis = is_known ? places_[number].basis() : initial_basis(number);
        // As many rows at each turn, so that any state can be loaded into the tensors of another.
        const int64_t rows = options_.alternating ? std::max(matrix.n, matrix.m) : basis.size(0);
        shared["basis"][name] = basis.new_zeros({rows, matrix.rank});
        shared["basis"][name].narrow(0, 0, basis.size(0)).copy_(basis);
      }
      if (options_.alternating) {
        const at::Tensor other = is_known ? places_[number].other_basis()
                                          : initial_basis_at(number, iterations_ + 1);
        at::Tensor& saved = shared["other_basis"][name];
        saved = other.new_zeros({std::max(matrix.n, matrix.m), matrix.rank});
        saved.narrow(0, 0, other.size(0)).copy_(other);
      }
      if (!options_.error_feedback) continue;
      local["residual"][name] =
          is_known ? residual_of(places_[number]).clone().view(shape) : zeros(number);
    }
    shared["iterations"]["count"] = at::scalar_tensor(static_cast<int64_t>(iterations_), at::kLong);
  }

  void load(const HookState& shared, const HookState& local) override {
    std::vector<Place> places(context_.parameters.size());
    const auto iterations = find(shared, "iterations", "count");
    const uint64_t count = iterations ? static_cast<uint64_t>(iterations->item<int64_t>()) : 0;
    bool has_residuals = false;
    for (size_t number = 0; number < places.size(); ++number) {
      const auto& name = context_.parameters[number].name;
      const auto& shape = context_.parameters[number].shape;
      const MatrixShape matrix = shape_of(number);
      if (matrix.rank == 0) continue;
      auto stack = std::make_shared<Stack>();
      stack->shape = matrix;
      stack->members = {0};
      at::Tensor basis = initial_basis_at(number, count);
      if (const auto saved = find(shared, "basis", name)) {
        const int64_t rows = options_.alternating ? std::max(matrix.n, matrix.m) : basis.size(0);
        basis = checked(*saved, {rows, matrix.rank}, "basis", name).narrow(0, 0, basis.size(0));
      }
      stack->basis = basis.clone().unsqueeze(0);
      if (options_.alternating) {
        at::Tensor other = initial_basis_at(number, count + 1);
        if (const auto saved = find(shared, "other_basis", name)) {
          other = checked(*saved, {std::max(matrix.n, matrix.m), matrix.rank}, "other_basis", name)
                      .narrow(0, 0, other.size(0));
        }
        stack->other_basis = other.clone().unsqueeze(0);
      }
      if (options_.error_feedback) {
        const auto residual = find(local, "residual", name);
        has_residuals |= residual.has_value();
        stack->owed = checked(residual ? *residual : zeros(number), shape, "residual", name)
                          .clone()
                          .view({1, matrix.n, matrix.m});
      }
      places[number] = {std::move(stack), 0};
    }
    places_ = std::move(places);
    layouts_.clear();
    iterations_ = count;
    has_residuals_ = has_residuals;
  }

 private:
  /// Where the state of a parameter lies.
  struct Place {
    std::shared_ptr<Stack> stack;
    int64_t row = 0;

    at::Tensor basis() const { return stack->basis.select(0, row); }
    at::Tensor other_basis() const { return stack->other_basis.select(0, row); }
  };

  at::Tensor residual_of(const Place& place) const {
    write_down(*place.stack);
    return place.stack->owed.select(0, place.row);
  }

  /// The step's first product is M Q, and not M^T P.
  bool first_is_left() const { return !options_.alternating || iterations_ % 2 == 0; }

  static std::optional<at::Tensor> find(const HookState& state, const std::string& kind,
                                        const std::string& name) {
    const auto tensors = state.find(kind);
    if (tensors == state.end()) return std::nullopt;
    const auto tensor = tensors->second.find(name);
    if (tensor == tensors->second.end()) return std::nullopt;
    return tensor->second;
  }

  static const at::Tensor& checked(const at::Tensor& tensor, at::IntArrayRef shape,
                                   const char* kind, const std::string& name) {
    if (tensor.sizes() != shape) {
      throw Error(ErrorCode::kInvalidArgument, std::string("expected the ") + kind + " of " + name +
                                                   " in shape " + c10::str(shape) + ", got " +
                                                   c10::str(tensor.sizes()));
    }
    return tensor;
  }

  MatrixShape shape_of(size_t number) const {
    const std::vector<int64_t>& shape = context_.parameters[number].shape;
    if (shape.size() < 2) return {};
    MatrixShape matrix;
    matrix.n = shape[0];
    matrix.m = 1;
    for (size_t i = 1; i < shape.size(); ++i) matrix.m *= shape[i];
    const int64_t wanted =
        number < options_.ranks.size() ? options_.ranks[number] : options_.default_rank;
    matrix.rank = std::min({matrix.n, matrix.m, wanted});
    const auto thin = static_cast<double>((matrix.n + matrix.m) * matrix.rank);
    if (thin * options_.min_compression_rate >= static_cast<double>(matrix.n * matrix.m)) {
      matrix.rank = 0;
    }
    return matrix;
  }

  at::Tensor initial_basis(size_t number) const { return initial_basis_at(number, iterations_); }

  /// Depends on the seed, the parameter's name and the iteration only.
  at::Tensor initial_basis_at(size_t number, uint64_t iteration) const {
    const std::string& name = context_.parameters[number].name;
    const MatrixShape matrix = shape_of(number);
    const bool left = !options_.alternating || iteration % 2 == 0;
    at::Generator generator = at::detail::createCPUGenerator(
        hash_of(name.empty() ? std::to_string(number) : name) + options_.seed +
        (options_.warm_start ? 0 : 0x9e3779b97f4a7c15U * iteration));
    const at::Tensor random =
        at::randn({1, left ? matrix.m : matrix.n, matrix.rank}, generator, at::kFloat)
            .to(dtype_of(number));
    make_orthonormal(random);
    return random.squeeze(0);
  }

  Layout& layout_of(const Bucket& bucket) {
    std::vector<size_t> parameters;
    for (const Gradient& gradient : bucket.gradients) parameters.push_back(gradient.parameter);
    const auto found = layouts_.find(bucket.index);
    if (found != layouts_.end() && found->second.parameters == parameters) return found->second;

    Layout layout;
    std::map<std::tuple<int64_t, int64_t, int64_t>, std::shared_ptr<Stack>> by_shape;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const MatrixShape shape = shape_of(parameters[i]);
      if (shape.rank == 0) {
        layout.whole.push_back(i);
        layout.whole_numel += bucket.gradients[i].flat.numel();
        continue;
      }
      auto& stack = by_shape[{shape.n, shape.m, shape.rank}];
      if (!stack) {
        stack = std::make_shared<Stack>();
        stack->shape = shape;
        layout.stacks.push_back(stack);
      }
      stack->members.push_back(i);
    }
    places_.resize(std::max(places_.size(), context_.parameters.size()));
    for (const auto& stack : layout.stacks) gather_state(stack, parameters, bucket.buffer);
    layout.parameters = std::move(parameters);
    return layouts_[bucket.index] = std::move(layout);
  }

  /// Moves the members' state from where it was into `stack`.
  void gather_state(const std::shared_ptr<Stack>& stack, const std::vector<size_t>& parameters,
                    const at::Tensor& buffer) {
    const auto& [n, m, rank] = stack->shape;
    const auto options = buffer.options().dtype(compute_dtype(buffer));
    const auto count = static_cast<int64_t>(stack->members.size());
    const int64_t rows = first_is_left() ? m : n;
    stack->basis = at::empty({count, rows, rank}, options);
    if (options_.alternating) stack->other_basis = at::empty({count, n + m - rows, rank}, options);
    stack->next_owed = at::empty({count, n, m}, options);
    if (options_.error_feedback) stack->owed = at::zeros({count, n, m}, options);
    for (int64_t row = 0; row < count; ++row) {
      const size_t number = parameters[stack->members[static_cast<size_t>(row)]];
      Place& place = places_[number];
      if (place.stack) {
        if (options_.error_feedback) stack->owed[row].copy_(residual_of(place));
        stack->basis[row].copy_(place.basis());
        if (options_.alternating) stack->other_basis[row].copy_(place.other_basis());
      } else {
        stack->basis[row].copy_(initial_basis(number));
        if (options_.alternating) {
          stack->other_basis[row].copy_(initial_basis_at(number, iterations_ + 1));
        }
      }
      place = {stack, row};
    }
  }

  void randomise(Stack& stack, const Bucket& bucket) const {
    stack.basis = at::empty_like(stack.basis);  // the last one may be a factor of what was paid
    for (size_t row = 0; row < stack.members.size(); ++row) {
      stack.basis[static_cast<int64_t>(row)].copy_(
          initial_basis(bucket.gradients[stack.members[row]].parameter));
    }
  }

  static at::ScalarType compute_dtype(const at::Tensor& buffer) {
    return compute_dtype(buffer.scalar_type());
  }
  static at::ScalarType compute_dtype(at::ScalarType gradients) {
    return gradients == at::kDouble ? at::kDouble : at::kFloat;
  }
  at::ScalarType dtype_of(size_t number) const {
    return compute_dtype(context_.parameters[number].dtype);
  }
  at::Tensor zeros(size_t number) const {
    return at::zeros(context_.parameters[number].shape, dtype_of(number));
  }

  at::Tensor gradient_of(const Stack& stack, size_t row, const Bucket& bucket) const {
    return bucket.gradients[stack.members[row]].flat.view({stack.shape.n, stack.shape.m});
  }

  // A parameter that no rank used has gradients of zero, and DDP drops what is reduced for it. So a
  // rank keeps its residual until it has a gradient to send along.
  void find_idle(Stack& stack, const Bucket& bucket) const {
    stack.is_idle.assign(stack.members.size(), false);
    if (!options_.error_feedback) return;
    for (size_t row = 0; row < stack.members.size(); ++row) {
      stack.is_idle[row] = all_zero(bucket.gradients[stack.members[row]].flat);
    }
  }

  /// kernels/low_rank.h is for these.
  static bool is_fast(const at::Tensor& matrices, const at::Tensor& gradients) {
    return is_fast(matrices) && is_fast(gradients);
  }
  static bool is_fast(const at::Tensor& tensor) {
    return tensor.device().is_cpu() && tensor.scalar_type() == at::kFloat;
  }

  double share() const { return 1.0 / context_.world_size; }

  /// M: this rank's contribution to the mean, and what it still owed. And M Q, or M^T P.
  void load_and_multiply(Stack& stack, const Bucket& bucket, bool left, at::Tensor& product) const {
    const auto& [n, m, rank] = stack.shape;
    const bool fast = is_fast(stack.next_owed, bucket.buffer);
    if (!fast) write_down(stack);
    at::Tensor bases;  // where M Q is made in the pass that makes M
    if (fast && left) bases = stack.basis.mT().contiguous();
    for (size_t row = 0; row < stack.members.size(); ++row) {
      const auto i = static_cast<int64_t>(row);
      const at::Tensor gradient = gradient_of(stack, row, bucket);
      at::Tensor target = stack.next_owed.select(0, i);
      if (stack.is_idle[row]) {
        target.zero_();
        if (bases.defined()) product.select(0, i).zero_();
      } else if (bases.defined()) {
        accumulate(stack, i, gradient.const_data_ptr<float>(),
                   bases.const_data_ptr<float>() + i * rank * m, target.mutable_data_ptr<float>(),
                   product.select(0, i).mutable_data_ptr<float>());
      } else if (fast) {
        accumulate(stack, i, gradient.const_data_ptr<float>(), nullptr,
                   target.mutable_data_ptr<float>(), nullptr);
      } else if (options_.error_feedback) {
        at::add_out(target, stack.owed.select(0, i), gradient, share());
      } else {
        at::mul_out(target, gradient, at::scalar_tensor(share(), target.scalar_type()));
      }
    }
    if (!bases.defined()) multiply(stack.next_owed, stack.basis, left, product);
  }

  /// What this rank owes of a member and its share of a gradient; see kernels/low_rank.h.
  void accumulate(const Stack& stack, int64_t row, const float* gradient, const float* basis,
                  float* sums, float* product) const {
    const auto& [n, m, rank] = stack.shape;
    for_blocks(n, m, [&, n = n, m = m, rank = rank](int64_t begin, int64_t end) {
      OwedMatrix owed;
      if (options_.error_feedback) {
        owed.matrix = stack.owed.const_data_ptr<float>() + (row * n + begin) * m;
      }
      if (stack.paid.left.defined()) {
        owed.left = stack.paid.left.const_data_ptr<float>() + (row * n + begin) * rank;
        owed.right = stack.paid.right.const_data_ptr<float>() + row * rank * m;
      }
      low_rank_kernels().accumulate(owed, gradient == nullptr ? nullptr : gradient + begin * m,
                                    static_cast<float>(share()), basis, to_size(end - begin),
                                    to_size(m), to_size(rank), sums + begin * m,
                                    product == nullptr ? nullptr : product + begin * rank);
    });
  }

  /// The residuals, in place of M and of what was paid of it.
  void write_down(Stack& stack) const {
    if (!stack.paid.left.defined()) return;
    for (int64_t row = 0; row < stack.owed.size(0); ++row) {
      float* const owed = stack.owed.select(0, row).mutable_data_ptr<float>();
      accumulate(stack, row, nullptr, nullptr, owed, nullptr);
    }
    stack.paid = {};
  }

  static size_t to_size(int64_t count) { return static_cast<size_t>(count); }

  /// Calls f(begin, end) for n rows, or columns, of m, in as many threads as the hook has.
  template <typename F>
  static void for_blocks(int64_t n, int64_t m, F&& f) {
    constexpr int64_t kGrain = 1 << 16;  // elements
    at::parallel_for(0, n, std::max<int64_t>(1, kGrain / m), f);
  }

  void add_residuals(Stack& stack, const Bucket& bucket) const {
    if (!options_.error_feedback) return;
    find_idle(stack, bucket);
    write_down(stack);
    for (size_t row = 0; row < stack.members.size(); ++row) {
      const at::Tensor residual = stack.owed.select(0, static_cast<int64_t>(row));
      at::Tensor left = stack.next_owed.select(0, static_cast<int64_t>(row));
      if (stack.is_idle[row]) {
        left.copy_(residual);
      } else {
        gradient_of(stack, row, bucket).add_(residual);
        left.zero_();
      }
    }
  }

  /// [whole gradients | one product for each stack], where M^T P has `rank` long rows; `products`
  /// are views of it, with `rank` columns.
  FactorMessage new_message(const Bucket& bucket, const Layout& layout, int64_t whole_numel,
                            bool left, std::vector<at::Tensor>& products) const {
    int64_t numel = whole_numel;
    for (const auto& stack : layout.stacks) {
      const auto& [n, m, rank] = stack->shape;
      numel += static_cast<int64_t>(stack->members.size()) * (left ? n : m) * rank;
    }
    const at::Tensor message =
        at::empty({numel}, bucket.buffer.options().dtype(compute_dtype(bucket.buffer)));
    int64_t offset = whole_numel;
    for (const auto& stack : layout.stacks) {
      const auto& [n, m, rank] = stack->shape;
      const auto count = static_cast<int64_t>(stack->members.size());
      const int64_t rows = left ? n : m;
      const at::Tensor part = message.narrow(0, offset, count * rows * rank);
      products.push_back(left ? part.view({count, n, rank}) : part.view({count, rank, m}).mT());
      offset += count * rows * rank;
    }
    return FactorMessage(message, whole_numel, options_.factor_dtype);
  }

  void pack_whole(const Bucket& bucket, const Layout& layout, const at::Tensor& message) const {
    int64_t offset = 0;
    for (const size_t i : layout.whole) {
      const at::Tensor& flat = bucket.gradients[i].flat;
      message.narrow(0, offset, flat.numel()).copy_(flat);
      offset += flat.numel();
    }
    message.narrow(0, 0, offset).mul_(share());
  }

  static void unpack_whole(const Bucket& bucket, const Layout& layout, const at::Tensor& message) {
    int64_t offset = 0;
    for (const size_t i : layout.whole) {
      const at::Tensor& flat = bucket.gradients[i].flat;
      flat.copy_(message.narrow(0, offset, flat.numel()));
      offset += flat.numel();
    }
  }

  /// M Q, or M^T P.
  static void multiply(const at::Tensor& matrices, const at::Tensor& basis, bool left,
                       at::Tensor& product) {
    if (!left && is_fast(matrices)) {
      const at::Tensor thin = basis.contiguous();
      const at::Tensor rows = product.mT();
      const int64_t n = matrices.size(1), m = matrices.size(2), rank = thin.size(2);
      for (int64_t i = 0; i < matrices.size(0); ++i) {
        const float* const p = thin.const_data_ptr<float>() + i * n * rank;
        const float* const matrix = matrices.const_data_ptr<float>() + i * n * m;
        float* const out = rows.select(0, i).mutable_data_ptr<float>();
        for_blocks(m, n, [&](int64_t begin, int64_t end) {
          low_rank_kernels().project(p, matrix + begin, to_size(n), to_size(m),
                                     to_size(end - begin), to_size(rank), out + begin);
        });
      }
      return;
    }
    // Transposed, as a few long rows: BLAS libraries are up to ten times slower at a few columns.
    const at::Tensor rows = basis.mT().contiguous();
    product.copy_(at::bmm(rows, left ? matrices.mT() : matrices).mT());
  }

  /// The gradients become P Q^T; what that lacks of M stays.
  void decode(Stack& stack, const Bucket& bucket, const at::Tensor& p, const at::Tensor& q) const {
    const auto& [n, m, rank] = stack.shape;
    const bool fast = is_fast(p, bucket.buffer);
    const Factors factors{p.contiguous(), q.mT().contiguous()};
    for (size_t row = 0; row < stack.members.size(); ++row) {
      const auto i = static_cast<int64_t>(row);
      const at::Tensor gradient = gradient_of(stack, row, bucket);
      const at::Tensor left = factors.left.select(0, i);
      const at::Tensor right = factors.right.select(0, i);
      const at::Tensor owed = stack.next_owed.select(0, i);
      const bool stays = options_.error_feedback && stack.is_idle[row];
      if (!fast) {
        if (stays) owed.copy_(stack.owed.select(0, i));
        gradient.copy_(at::mm(left, right));
        if (options_.error_feedback) owed.sub_(gradient, share());
        continue;
      }
      if (stays) accumulate(stack, i, nullptr, nullptr, owed.mutable_data_ptr<float>(), nullptr);
      float* const out = gradient.mutable_data_ptr<float>();
      for_blocks(n, m, [&, m = m, rank = rank](int64_t begin, int64_t end) {
        low_rank_kernels().expand(left.const_data_ptr<float>() + begin * rank,
                                  right.const_data_ptr<float>(), to_size(end - begin), to_size(m),
                                  to_size(rank), out + begin * m);
      });
    }
    if (fast && options_.error_feedback) stack.next_paid = factors;
  }

  /// Each stack's next basis comes from the product it has just got. A matrix that no rank used has
  /// a product of zeros, and keeps the basis it had.
  void move_bases(const Bucket& bucket, Layout& layout,
                  const std::vector<at::Tensor>& products) const {
    const PhaseTimer timer = bucket.time("orthonormalise");
    for (size_t i = 0; i < layout.stacks.size(); ++i) {
      Stack& stack = *layout.stacks[i];
      at::Tensor moved = products[i].clone();  // the products were paid
      make_orthonormal(moved);
      const at::Tensor is_used = products[i].ne(0).flatten(1).any(1).view({-1, 1, 1});
      const at::Tensor& last = options_.alternating ? stack.other_basis : stack.basis;
      stack.next_basis = at::where(is_used, moved, last);
    }
    layout.moves_basis = true;
  }

  /// GradScaler finds in the gradients what the hook found in the messages.
  static void drop(Bucket& bucket) {
    bucket.buffer.fill_(std::numeric_limits<double>::quiet_NaN());
    bucket.overflowed();
  }

  const PowerSgdOptions options_;
  std::map<size_t, Layout> layouts_;  // by index of the bucket
  std::vector<Place> places_;         // by number of the parameter
  uint64_t iterations_ = 0;           // steps that moved a basis
  bool has_residuals_ = false;
};

}  // namespace

std::unique_ptr<Hook> make_powersgd(const HookContext& context, PowerSgdOptions options) {
  return std::make_unique<PowerSgd>(context, std::move(options));
}

}  // namespace q7x2
