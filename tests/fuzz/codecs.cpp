// The decoder of every codec, the sparse ones among them: it refuses a message or decodes
// something, and reads and writes nothing but its own.
#include <algorithm>
#include <cstring>
#include <memory>

#include "base/error.h"
#include "format.h"
#include "kernels/codec/codec.h"

namespace q7x2::fuzz {
namespace {

constexpr size_t kLongest = 1500;
constexpr size_t kRecent = 32;
constexpr uint64_t kOfOneMessage = 20;

const std::vector<std::shared_ptr<const Codec>>& codecs() {
  static const auto all = [] {
    std::vector<std::shared_ptr<const Codec>> list;
    for (const std::string select : {"", "topk:0.02+", "threshold:1.5+", "randomk:0.1+",
                                     "blocks:0.3+", "nm:1:4+", "topk:0.1:reselect+"}) {
      for (const std::string value : {"fp32", "bf16", "fp8_e5m2", "int8", "int6:g=32",
                                      "int3:minmax", "ternary", "onebit", "hadamard+int4"}) {
        for (const std::string entropy : {"", "+lossless"}) {
          list.push_back(Codec::make(select + value + entropy));
        }
      }
    }
    return list;
  }();
  return all;
}

std::string encoded(const Codec& codec, size_t count, Random& random) {
  std::vector<float> values(count);
  const float scale = random() % 2 == 0 ? 1.0F : 1e-3F;
  for (float& value : values) {
    value = random() % 4 == 0 ? 0 : scale * (static_cast<float>(random() % 2001) - 1000);
  }
  std::string bytes(codec.max_bytes(count), '\0');
  const ReadElements read = [&](size_t first, size_t) { return values.data() + first; };
  bytes.resize(codec.encode(
      {.values = values.data(), .count = count, .selection = codec.select(read, count, {})},
      reinterpret_cast<std::byte*>(bytes.data())));
  return bytes;
}

/// A receiver knows which codec and how many elements to expect, so an input begins with them.
struct Expected {
  uint16_t codec;
  uint16_t count;
  uint16_t first;
  uint16_t how;  // bit 0: sums; bit 1: adds
};

const Codec& codec_of(const Expected& expected) {
  const Codec& codec = *codecs()[expected.codec % codecs().size()];
  return (expected.how & 1) != 0 ? codec.of_sums() : codec;
}

std::string fresh(Random& random) {
  const Expected expected{static_cast<uint16_t>(random()),
                          static_cast<uint16_t>(random() % kLongest),
                          static_cast<uint16_t>(random() % 1024), static_cast<uint16_t>(random())};
  std::string input(reinterpret_cast<const char*>(&expected), sizeof(expected));
  return input + encoded(codec_of(expected), expected.count, random);
}

bool read(std::string_view input, Random&) {
  Expected expected{};
  if (input.size() < sizeof(expected)) return false;
  std::memcpy(&expected, input.data(), sizeof(expected));
  const size_t count = expected.count % kLongest;
  // Of exactly this length, so that a sanitizer sees what is read or written beside it.
  const std::string_view message = input.substr(sizeof(expected));
  const std::unique_ptr<std::byte[]> bytes(new std::byte[message.size()]);
  std::memcpy(bytes.get(), message.data(), message.size());
  const std::unique_ptr<float[]> out(new float[count]());
  const Codec& codec = codec_of(expected);
  try {
    if ((expected.how & 2) != 0) {
      codec.decode_add({bytes.get(), message.size()}, out.get(), count, expected.first, {});
    } else {
      codec.decode({bytes.get(), message.size()}, out.get(), count, expected.first, {});
    }
  } catch (const Error& error) {
    require(error.code() == ErrorCode::kMismatch, error.what());
    return false;
  }
  return true;
}

}  // namespace

std::vector<Format> codec_formats() {
  // To encode takes longer than to decode.
  const auto recent = std::make_shared<std::vector<std::string>>();
  const auto example = [=](Random& random) {
    if (recent->size() < kRecent) return recent->emplace_back(fresh(random));
    std::string& any = (*recent)[random() % kRecent];
    if (random() % kOfOneMessage == 0) any = fresh(random);
    return any;
  };
  return {{"codec", 14, example, read}};
}

}  // namespace q7x2::fuzz
