#include "comm_hooks/methods/matrix_stacks.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>

#include "base/error.h"
#include "base/parse_number.h"
#include "comm_hooks/methods/matrix_products.h"
#include "comm_hooks/methods/orthonormal.h"

namespace q7x2 {
namespace {

/// FNV-1a, which gives the same result on every machine.
uint64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211U;
  }
  return hash;
}

std::optional<at::Tensor> find(const HookState& state, const char* kind, const std::string& name) {
  const auto tensors = state.find(kind);
  if (tensors == state.end()) return std::nullopt;
  const auto tensor = tensors->second.find(name);
  if (tensor == tensors->second.end()) return std::nullopt;
  return tensor->second;
}

/// Pads the basis to the same number of rows at each turn, and of columns at each rank, so that any
/// state can be loaded into the tensors of another.
at::Tensor padded(const at::Tensor& basis, int64_t rows, int64_t columns) {
  const at::Tensor all = basis.new_zeros({rows, columns});
  all.narrow(0, 0, basis.size(0)).narrow(1, 0, basis.size(1)).copy_(basis);
  return all;
}

/// The columns of a saved basis, without the zeros after the last one.
at::Tensor without_zeros(const at::Tensor& padded) {
  const auto columns = padded.ne(0).any(0).sum().item<int64_t>();
  return padded.narrow(1, 0, std::max<int64_t>(columns, 1)).clone();
}

/// The rank in a policy's text; 0 if it is not a number.
int64_t rank_in(const std::string& text) {
  return std::max<int64_t>(parse_number<int64_t>(text).value_or(0), 0);
}

}  // namespace

MatrixShape MatrixStacks::largest_shape_of(size_t number) const {
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

MatrixShape MatrixStacks::shape_of(size_t number) const {
  MatrixShape matrix = largest_shape_of(number);
  const std::string& level = context_.decision.of(number).compressor;
  if (!level.empty()) matrix.rank = std::min(matrix.rank, rank_in(level));
  return matrix;
}

void MatrixStacks::check_rank(size_t number, const std::string& rank) const {
  const int64_t wanted =
      number < options_.ranks.size() ? options_.ranks[number] : options_.default_rank;
  if (rank_in(rank) > 0 && rank_in(rank) <= wanted) return;
  throw Error(ErrorCode::kInvalidArgument,
              "expected a rank from 1 to " + std::to_string(wanted) + ", that of the hook, for " +
                  context_.parameters[number].name + ", got '" + rank + "'");
}

uint64_t MatrixStacks::start_of(uint64_t iteration) const {
  if (!options_.warm_start) return iteration;
  return options_.reset_every > 0 ? iteration / options_.reset_every : 0;
}

bool MatrixStacks::restarts_in(uint64_t iteration) const {
  return iteration > 0 && start_of(iteration) != start_of(iteration - 1);
}

at::Tensor MatrixStacks::initial_basis(size_t number, uint64_t iteration) const {
  const std::string& name = context_.parameters[number].name;
  const MatrixShape matrix = shape_of(number);
  at::Generator generator = at::detail::createCPUGenerator(
      hash_of(name.empty() ? std::to_string(number) : name) + options_.random_seed +
      0x9e3779b97f4a7c15U * start_of(iteration));
  const at::Tensor random =
      at::randn({1, is_left(iteration) ? matrix.m : matrix.n, matrix.rank}, generator, at::kFloat)
          .to(compute_dtype(context_.parameters[number].dtype));
  make_orthonormal({random});
  return random.squeeze(0);
}

MatrixStacks::Bases MatrixStacks::bases_of(size_t number) const {
  return {newest_basis(number, iterations_),
          options_.alternating ? newest_basis(number, iterations_ + 1) : at::Tensor(), iterations_};
}

at::Tensor MatrixStacks::newest_basis(size_t number, uint64_t iteration) const {
  const Bases known = number < bases_.size() ? bases_[number] : Bases{};
  const auto is_its_turn = [&](uint64_t other) { return is_left(other) == is_left(iteration); };
  for (uint64_t past = iterations_; past-- > known.iteration;) {
    if (restarts_in(past) && is_its_turn(past)) return initial_basis(number, past);
  }
  const bool is_first = is_its_turn(known.iteration);
  if (!known.basis.defined()) return initial_basis(number, is_first ? 0 : 1);
  return fitted(is_first ? known.basis : known.other, number, iteration);
}

at::Tensor MatrixStacks::fitted(const at::Tensor& basis, size_t number, uint64_t iteration) const {
  const int64_t rank = shape_of(number).rank;
  if (basis.size(1) >= rank) return basis.narrow(1, 0, rank);
  at::Tensor random = initial_basis(number, iteration).to(basis.device());
  const at::Tensor added = random.narrow(1, basis.size(1), rank - basis.size(1));
  const at::Tensor wider = at::cat({basis, added}, 1).unsqueeze(0);
  make_orthonormal({wider});
  return wider.squeeze(0);
}

void MatrixStacks::arrange(const Bucket& bucket, std::vector<size_t>& coded) const {
  std::vector<std::pair<std::tuple<int64_t, int64_t, int64_t>, std::vector<size_t>>> by_shape;
  for (const size_t i : coded) {
    const MatrixShape shape = shape_of(bucket.gradients[i].parameter);
    const std::tuple key{shape.n, shape.m, shape.rank};
    auto found = std::ranges::find_if(by_shape, [&](auto& one) { return one.first == key; });
    if (found == by_shape.end()) found = by_shape.insert(found, {key, {}});
    found->second.push_back(i);
  }
  coded.clear();
  for (const auto& [shape, positions] : by_shape) {
    coded.insert(coded.end(), positions.begin(), positions.end());
  }
}

bool MatrixStacks::has_ranks_of_now(const StackLayout& layout,
                                    const BucketExchange& exchange) const {
  return std::ranges::all_of(layout.stacks, [&](const auto& stack) {
    return std::ranges::all_of(stack->members, [&](size_t member) {
      return shape_of(exchange.gradient(member).parameter) == stack->shape;
    });
  });
}

StackLayout& MatrixStacks::layout_of(const BucketExchange& exchange) {
  const ErrorFeedback::Piece& memory = *exchange.memory;
  StackLayout& layout = layouts_[exchange.bucket.index];
  const bool is_known = layout.serial == memory.serial && has_ranks_of_now(layout, exchange);
  layout.used = true;
  if (is_known) return layout;

  for (const auto& stack : layout.stacks) q7x2::write_down(*stack);
  layout.serial = memory.serial;
  layout.stacks.clear();
  std::vector<size_t> parameters;
  for (size_t i = 0; i < exchange.coded.size(); ++i) {
    parameters.push_back(exchange.gradient(i).parameter);
    const MatrixShape shape = shape_of(parameters.back());
    const bool continues = !layout.stacks.empty() && layout.stacks.back()->shape == shape;
    if (!continues) {
      layout.stacks.push_back(std::make_shared<Stack>());
      layout.stacks.back()->shape = shape;
    }
    layout.stacks.back()->members.push_back(i);
  }
  bases_.resize(std::max(bases_.size(), context_.parameters.size()));
  const at::Tensor& buffer = exchange.bucket.buffer;
  const auto options = buffer.options().dtype(compute_dtype(buffer.scalar_type()));
  for (const auto& stack : layout.stacks) {
    const auto& [n, m, rank] = stack->shape;
    const int64_t rows = first_is_left() ? m : n;
    stack->basis = at::empty({stack->count(), rows, rank}, options);
    if (options_.alternating) {
      stack->other_basis = at::empty({stack->count(), n + m - rows, rank}, options);
    }
    for (int64_t row = 0; row < stack->count(); ++row) {
      const Bases bases = bases_of(parameters[stack->members[static_cast<size_t>(row)]]);
      stack->basis[row].copy_(bases.basis);
      if (options_.alternating) stack->other_basis[row].copy_(bases.other);
    }
    remember(*stack, parameters);
    if (exchange.has_residual) {
      const int64_t first = memory.places[stack->members.front()].first;
      const auto view = [&, n = n, m = m](const at::Tensor& packed) {
        return packed.narrow(0, first, stack->count() * n * m).view({stack->count(), n, m});
      };
      stack->owed = view(memory.now[0]);
      stack->next_owed = view(memory.next[0]);
    } else {
      stack->next_owed = at::empty({stack->count(), n, m}, options);
    }
  }
  parameters_[exchange.bucket.index] = std::move(parameters);
  return layout;
}

void MatrixStacks::remember(const Stack& stack, const std::vector<size_t>& parameters) {
  for (int64_t row = 0; row < stack.count(); ++row) {
    Bases& bases = bases_[parameters[stack.members[static_cast<size_t>(row)]]];
    bases.iteration = iterations_;
    bases.basis = stack.basis.select(0, row);
    if (options_.alternating) bases.other = stack.other_basis.select(0, row);
  }
}

void MatrixStacks::randomise(StackLayout& layout, const BucketExchange& exchange) const {
  std::vector<at::Tensor> bases;
  for (const auto& stack : layout.stacks) {
    for (const size_t member : stack->members) {
      bases.push_back(initial_basis(exchange.gradient(member).parameter, iterations_).flatten());
    }
  }
  if (bases.empty()) return;
  // All in one copy, for which the host waits once. It is a new tensor, because the last basis may
  // be a factor of the residual.
  const at::Tensor all = at::cat(bases).to(exchange.bucket.buffer.device());
  int64_t offset = 0;
  for (const auto& stack : layout.stacks) {
    const int64_t numel = stack->basis.numel();
    stack->basis = all.narrow(0, offset, numel).view(stack->basis.sizes());
    offset += numel;
  }
}

void MatrixStacks::write_down() {
  for (auto& [index, layout] : layouts_) {
    for (const auto& stack : layout.stacks) q7x2::write_down(*stack);
  }
}

void MatrixStacks::forget_unused() {
  for (auto entry = layouts_.begin(); entry != layouts_.end();) {
    if (entry->second.used) {
      ++entry;
      continue;
    }
    for (const auto& stack : entry->second.stacks) q7x2::write_down(*stack);
    entry = layouts_.erase(entry);
  }
}

void MatrixStacks::commit() {
  forget_unused();
  if (!layouts_.empty()) ++iterations_;
  for (auto& [index, layout] : layouts_) {
    layout.used = false;
    for (const auto& stack : layout.stacks) {
      if (stack->owed.defined()) {
        std::swap(stack->owed, stack->next_owed);
        stack->paid = std::exchange(stack->next_paid, {});
      }
      std::swap(stack->basis, stack->next_basis);
      if (options_.alternating) stack->other_basis = stack->next_basis;
      stack->next_basis.reset();
      remember(*stack, parameters_[index]);
    }
  }
}

void MatrixStacks::abort() {
  forget_unused();
  if (!context_.may_skip) layouts_.clear();  // the memory has dropped their pieces
  for (auto& [index, layout] : layouts_) {
    layout.used = false;
    for (const auto& stack : layout.stacks) {
      stack->next_paid = {};
      stack->next_basis.reset();
    }
  }
}

void MatrixStacks::save(HookState& shared) const {
  for (size_t number = 0; number < context_.parameters.size(); ++number) {
    const MatrixShape matrix = shape_of(number);
    if (matrix.rank == 0 || !options_.warm_start) continue;
    const std::string& name = context_.parameters[number].name;
    const Bases bases = bases_of(number);
    const int64_t rows = options_.alternating ? std::max(matrix.n, matrix.m) : bases.basis.size(0);
    const int64_t columns = largest_shape_of(number).rank;
    shared["basis"][name] = padded(bases.basis, rows, columns);
    if (options_.alternating) shared["other_basis"][name] = padded(bases.other, rows, columns);
  }
  shared["iterations"]["count"] = at::scalar_tensor(static_cast<int64_t>(iterations_), at::kLong);
}

void MatrixStacks::load(const HookState& shared) {
  std::vector<Bases> loaded(context_.parameters.size());
  const auto iterations = find(shared, "iterations", "count");
  const uint64_t count = iterations ? static_cast<uint64_t>(iterations->item<int64_t>()) : 0;
  for (size_t number = 0; number < loaded.size(); ++number) {
    const MatrixShape matrix = shape_of(number);
    if (matrix.rank == 0) continue;
    const std::string& name = context_.parameters[number].name;
    const auto take = [&](const char* kind, uint64_t iteration) {
      const auto saved = find(shared, kind, name);
      if (!saved) return initial_basis(number, iteration);
      const int64_t its = is_left(iteration) ? matrix.m : matrix.n;
      const int64_t rows = options_.alternating ? std::max(matrix.n, matrix.m) : its;
      const std::vector<int64_t> shape{rows, largest_shape_of(number).rank};
      if (saved->sizes() != at::IntArrayRef(shape)) {
        throw Error(ErrorCode::kInvalidArgument, std::string("expected the ") + kind + " of " +
                                                     name + " in shape " + c10::str(shape) +
                                                     ", got " + c10::str(saved->sizes()));
      }
      return without_zeros(saved->narrow(0, 0, its));
    };
    loaded[number].iteration = count;
    loaded[number].basis = take("basis", count);
    if (options_.alternating) loaded[number].other = take("other_basis", count + 1);
  }
  bases_ = std::move(loaded);
  layouts_.clear();
  parameters_.clear();
  iterations_ = count;
}

}  // namespace q7x2
