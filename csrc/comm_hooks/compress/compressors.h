// The table of compressors: their names, their options, and how they are made.
//
// A compressor is one file in this folder, with its options, their documentation, and its two
// classes (compressor.h). The file defines `CompressorKind <name>_compressor()`, and `<name>` is
// one line in compressors.cpp. Python, its checks and its documentation follow from that.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm_hooks/compress/compressing_options.h"
#include "comm_hooks/compress/compressor.h"
#include "comm_hooks/compress/option_fields.h"

namespace q7x2 {

using MakeCompressor =
    std::function<std::unique_ptr<Compressor>(const HookContext&, const CompressingOptions&)>;

struct CompressorKind {
  std::string name;
  std::string doc;   ///< one sentence
  size_t lanes = 1;  ///< maximum number of rounds per bucket, for any options
  std::vector<OptionField> fields;
  /// Throws Error(kInvalidArgument) if a value is out of its range.
  std::function<MakeCompressor(const OptionValues&)> with;
};

/// `make(context, compressing, options)` makes the compressor, and may throw
/// Error(kInvalidArgument).
template <typename Options, typename Make>
CompressorKind describe_compressor(const char* name, const char* doc, size_t lanes,
                                   OptionFields<Options> fields, Make make) {
  CompressorKind kind{name, doc, lanes, fields.fields(), {}};
  kind.with = [fields = std::move(fields), make](const OptionValues& values) -> MakeCompressor {
    return [options = fields.make(values), make](const HookContext& context,
                                                 const CompressingOptions& compressing) {
      return std::unique_ptr<Compressor>(make(context, compressing, options));
    };
  };
  return kind;
}

std::span<const CompressorKind> compressor_kinds();
/// Throws Error(kInvalidArgument), with a list of the names, if the name is unknown.
const CompressorKind& find_compressor(const std::string& name);

}  // namespace q7x2
