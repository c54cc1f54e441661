#include "bindings/codec.h"

#include <optional>
#include <vector>

#include <torch/csrc/utils/pybind.h>

#include "backend/plain_tensors.h"
#include "base/error.h"
#include "kernels/codec/codec.h"

namespace q7x2 {
namespace {

namespace py = pybind11;

at::Tensor checked(const at::Tensor& tensor, at::ScalarType dtype, int64_t least,
                   const char* name) {
  if (!tensor.device().is_cpu() || !is_plain(tensor) || tensor.scalar_type() != dtype ||
      tensor.numel() < least) {
    throw py::value_error(std::string(name) + ": expected a contiguous CPU tensor of " +
                          at::toString(dtype) + " with at least " + std::to_string(least) +
                          " elements, no negative view");
  }
  return tensor;
}

/// The blocks of a tensor, and the position of each block's message.
struct Blocks {
  size_t count;
  size_t block;
  size_t room;

  Blocks(const Codec& codec, size_t elements, size_t length)
      : count(elements), block(length), room(codec.max_bytes(length)) {
    if (block == 0) throw py::value_error("block: expected a positive number of elements");
  }
  size_t number() const { return (count + block - 1) / block; }
  size_t length(size_t index) const { return std::min(block, count - index * block); }
};

std::vector<size_t> encode(const Codec& codec, const at::Tensor& values, const at::Tensor& messages,
                           const std::optional<at::Tensor>& errors, size_t block,
                           const CodecKeys& keys) {
  const float* const from = checked(values, at::kFloat, 0, "values").const_data_ptr<float>();
  const Blocks blocks(codec, static_cast<size_t>(values.numel()), block);
  float* kept = nullptr;
  if (errors) kept = checked(*errors, at::kFloat, values.numel(), "errors").data_ptr<float>();
  auto* const to = reinterpret_cast<std::byte*>(
      checked(messages, at::kByte, static_cast<int64_t>(blocks.number() * blocks.room), "messages")
          .data_ptr<uint8_t>());
  const py::gil_scoped_release no_gil;
  std::vector<float> sums(kLargestRead);
  const ReadElements read = [&](size_t first, size_t count) -> const float* {
    if (kept == nullptr) return from + first;
    for (size_t i = 0; i < count; ++i) sums[i] = from[first + i] + kept[first + i];
    return sums.data();
  };
  const Selection selection = codec.select(read, blocks.count, keys);
  std::vector<size_t> lengths(blocks.number());
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t first = i * block;
    float* const own = kept == nullptr ? nullptr : kept + first;
    lengths[i] = codec.encode({.values = from + first,
                               .count = blocks.length(i),
                               .first = first,
                               .add = own,
                               .error = own,
                               .selection = selection,
                               .keys = keys},
                              to + i * blocks.room);
  }
  return lengths;
}

void decode(const Codec& codec, const at::Tensor& messages, const std::vector<size_t>& lengths,
            const at::Tensor& out, bool add, size_t block, const CodecKeys& keys) {
  float* const to = checked(out, at::kFloat, 0, "out").data_ptr<float>();
  const Blocks blocks(codec, static_cast<size_t>(out.numel()), block);
  const auto* const from = reinterpret_cast<const std::byte*>(
      checked(messages, at::kByte, static_cast<int64_t>(blocks.number() * blocks.room), "messages")
          .const_data_ptr<uint8_t>());
  if (lengths.size() != blocks.number()) throw py::value_error("lengths: expected one per block");
  const py::gil_scoped_release no_gil;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const size_t first = i * block;
    const std::span message(from + i * blocks.room, std::min(lengths[i], blocks.room));
    if (add) {
      codec.decode_add(message, to + first, blocks.length(i), first, keys);
    } else {
      codec.decode(message, to + first, blocks.length(i), first, keys);
    }
  }
}

}  // namespace

void bind_codec(py::module_& module) {
  constexpr size_t kBlock = size_t{1} << 16;
  const auto keys = [](uint64_t shared, uint64_t rounding) { return CodecKeys{shared, rounding}; };
  py::class_<Codec, std::shared_ptr<Codec>>(module, "Codec")
      .def(py::init([](const std::string& name) {
             try {
               return std::const_pointer_cast<Codec>(Codec::make(name));
             } catch (const Error& error) {
               throw py::value_error(error.what());
             }
           }),
           py::arg("name"))
      .def_property_readonly("name", &Codec::name)
      .def_property_readonly("bits", [](const Codec& codec) { return codec.traits().bits; })
      .def_property_readonly("unbiased", [](const Codec& codec) { return codec.traits().unbiased; })
      .def_property_readonly("fixed_size",
                             [](const Codec& codec) { return codec.traits().fixed_size; })
      .def_property_readonly("has_messages", &Codec::has_messages)
      .def_property_readonly("keeps_error",
                             [](const Codec& codec) { return codec.traits().keeps_error; })
      .def_property_readonly("group", [](const Codec& codec) { return codec.spec().value.group; })
      .def("max_bytes", &Codec::max_bytes, py::arg("count"))
      .def(
          "encode",
          [keys](const Codec& codec, const at::Tensor& values, const at::Tensor& messages,
                 const std::optional<at::Tensor>& errors, size_t block, uint64_t shared_key,
                 uint64_t rounding_key) {
            return encode(codec, values, messages, errors, block, keys(shared_key, rounding_key));
          },
          py::arg("values"), py::arg("messages"), py::arg("errors") = std::nullopt, py::kw_only(),
          py::arg("block") = kBlock, py::arg("shared_key") = 0, py::arg("rounding_key") = 0)
      .def(
          "decode",
          [keys](const Codec& codec, const at::Tensor& messages, const std::vector<size_t>& lengths,
                 const at::Tensor& out, bool add, size_t block, uint64_t shared_key) {
            decode(codec, messages, lengths, out, add, block, keys(shared_key, 0));
          },
          py::arg("messages"), py::arg("lengths"), py::arg("out"), py::kw_only(),
          py::arg("add") = false, py::arg("block") = kBlock, py::arg("shared_key") = 0);
}

}  // namespace q7x2
