// How a block of a GPU walks over a tile of a tensor that is marked (kernels/codec/marking.h): row
// by row, an element for each thread.
//
// Included by the CUDA sources only.
#pragma once

#include "kernels/codec/marking.h"
#include "kernels/cuda/team_cuda.h"

namespace q7x2 {
namespace {

constexpr unsigned kWarps = kThreads / kTeam;
constexpr unsigned kRows = kMarkTile / kThreads;  // of a tile
constexpr unsigned kWords = kMarkTile / 32;       // of a tile's mask

}  // namespace
}  // namespace q7x2
