#include "comm_hooks/run/facts.h"

#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

constexpr int64_t kNorms = 3;  // number of columns before those of the candidates
constexpr int64_t kTimes = 2;

int64_t columns_of(const Decision& decision) {
  return kNorms + static_cast<int64_t>(decision.candidates.size());
}

/// [sources], squared L2 norms in fp32, on the device. That of an undefined tensor is 0.
at::Tensor squared_norms(const std::vector<at::Tensor>& tensors, const at::TensorOptions& options) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& tensor : tensors) {
    norms.push_back(tensor.defined() ? tensor.norm(2, at::kFloat) : at::zeros({}, options));
  }
  return at::stack(norms).square_();
}

/// [sources, candidates]. The host waits for a device once.
at::Tensor candidate_errors(const std::vector<FactSource>& sources, const Decision& decision,
                            double share) {
  std::vector<at::Tensor> parts;
  for (const FactSource& source : sources) {
    at::Tensor values = source.sent.to(at::kFloat) * share;
    if (source.residual.defined()) values.add_(source.residual);
    parts.push_back(values);
  }
  const at::Tensor all = at::cat(parts).cpu();
  std::vector<std::shared_ptr<const Codec>> codecs;
  for (const std::string& name : decision.candidates) codecs.push_back(Codec::make(name));
  std::vector<float> errors;
  int64_t offset = 0;
  for (const at::Tensor& part : parts) {
    const float* const values = all.const_data_ptr<float>() + offset;
    const auto count = static_cast<size_t>(part.numel());
    for (const auto& codec : codecs) {
      errors.push_back(static_cast<float>(codec->squared_error(values, count)));
    }
    offset += part.numel();
  }
  return at::tensor(errors).view({static_cast<int64_t>(sources.size()), -1});
}

}  // namespace

at::Tensor measure_facts(const std::vector<FactSource>& sources, const Decision& decision,
                         const StepTimes& times, double share, double scale) {
  const at::TensorOptions options = sources.front().gradient.options().dtype(at::kFloat);
  const auto rows = static_cast<int64_t>(sources.size());
  at::Tensor facts = at::zeros({rows * columns_of(decision) + kTimes}, options);
  const at::Tensor table =
      facts.narrow(0, 0, rows * columns_of(decision)).view({rows, columns_of(decision)});
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> residuals;
  for (const FactSource& source : sources) {
    gradients.push_back(source.gradient);
    residuals.push_back(source.residual);
  }
  const at::Tensor squares = squared_norms(gradients, options);
  table.select(1, 2).copy_(squares != 0);
  table.select(1, 0).copy_(squares.mul_(share * share / (scale * scale)));
  table.select(1, 1).copy_(squared_norms(residuals, options).div_(scale * scale));
  if (!decision.candidates.empty()) {
    table.narrow(1, kNorms, columns_of(decision) - kNorms)
        .copy_(candidate_errors(sources, decision, share).div_(scale * scale));
  }
  facts.narrow(0, facts.numel() - kTimes, kTimes)
      .copy_(at::tensor({static_cast<float>(times.step), static_cast<float>(times.wire)}));
  return facts;
}

std::vector<GradientFacts> read_facts(const at::Tensor& sums, size_t gradients,
                                      const Decision& decision, int ranks, StepTimes& times) {
  const at::Tensor here = sums.cpu();
  const float* next = here.const_data_ptr<float>();
  std::vector<GradientFacts> facts;
  for (size_t i = 0; i < gradients; ++i) {
    GradientFacts& one = facts.emplace_back();
    one.gradient = *next++;
    one.residual = *next++;
    one.uses = *next++;
    for (size_t c = 0; c < decision.candidates.size(); ++c) one.errors.push_back(*next++);
  }
  times.step = *next++ / ranks;
  times.wire = *next++ / ranks;
  return facts;
}

}  // namespace q7x2
