#include "kernels/cuda/gemm_lt.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"

namespace tailrace::cuda {
namespace {

// The loader's path first, then where toolkits are installed.
constexpr const char* kNames[] = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13", "libcublasLt.so.12",
                                  "/usr/local/cuda/lib64/libcublasLt.so.12"};

}  // namespace

struct GemmLt::Library {
  void* handle = nullptr;
  cublasLtHandle_t lt = nullptr;
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

// One shape and bucket. The layouts are changed to a call's sizes before it; one thread launches.
struct GemmLt::Plan {
  GemmShape shape;
  int bucket;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr, x = nullptr, out = nullptr;
  cublasLtMatmulAlgo_t algo;
  bool is_new = true;  // of this shape's algorithms so far
};

Expected<std::unique_ptr<GemmLt>> GemmLt::create() {
  std::unique_ptr<GemmLt> gemm(new GemmLt());
  gemm->library_ = std::make_unique<Library>();
  Library& lib = *gemm->library_;
  for (const char* name : kNames) {
    if ((lib.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)) != nullptr) break;
  }
  if (lib.handle == nullptr) {
    return fail(StatusCode::kUnsupported,
                "cuBLASLt is not installed: no libcublasLt.so.13 or .12 on the loader's path or in "
                "/usr/local/cuda/lib64");
  }
  bool complete = true;
  const auto load = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(lib.handle, name));
    complete &= function != nullptr;
  };
  load(lib.create, "cublasLtCreate"), load(lib.destroy, "cublasLtDestroy"), load(lib.matmul, "cublasLtMatmul");
  load(lib.desc_create, "cublasLtMatmulDescCreate"), load(lib.desc_destroy, "cublasLtMatmulDescDestroy");
  load(lib.desc_set, "cublasLtMatmulDescSetAttribute"), load(lib.layout_create, "cublasLtMatrixLayoutCreate");
  load(lib.layout_destroy, "cublasLtMatrixLayoutDestroy"), load(lib.layout_set, "cublasLtMatrixLayoutSetAttribute");
  load(lib.preference_create, "cublasLtMatmulPreferenceCreate"),
      load(lib.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  load(lib.preference_set, "cublasLtMatmulPreferenceSetAttribute"),
      load(lib.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  if (!complete || lib.create(&lib.lt) != CUBLAS_STATUS_SUCCESS) {
    return fail(StatusCode::kUnsupported,
                "cuBLASLt was found but cannot be used: another version, or no memory on the GPU");
  }
  return gemm;
}

GemmLt::~GemmLt() {
  if (!library_ || !library_->lt) return;
  for (Plan& plan : plans_) {
    library_->desc_destroy(plan.desc);
    for (auto layout : {plan.w, plan.x, plan.out}) library_->layout_destroy(layout);
  }
  library_->destroy(library_->lt);
}

const GemmLt::Plan* GemmLt::find(const GemmShape& shape, int tokens) const {
  const int wanted = bucket(tokens);
  for (const Plan& plan : plans_) {
    if (plan.bucket == wanted && plan.shape == shape) return &plan;
  }
  return nullptr;
}

bool GemmLt::brings_new_algorithm(int tokens) const {
  return std::any_of(plans_.begin(), plans_.end(),
                     [wanted = bucket(tokens)](const Plan& plan) { return plan.bucket == wanted && plan.is_new; });
}

// Column-major to cuBLAS: out [n, tokens] = w^T (k x n, transposed) x (k x tokens).
Status GemmLt::prepare(const GemmShape& shape, int max_tokens) {
  Library& lib = *library_;
  const int n = shape.n, k = shape.k;
  const cudaDataType_t type = shape.half ? CUDA_R_16F : CUDA_R_16BF, out_type = shape.fp32_out ? CUDA_R_32F : type;
  const auto succeeded = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };
  for (int tokens = 1; tokens <= bucket(max_tokens); tokens = bucket(tokens) + 1) {
    if (find(shape, tokens) != nullptr) continue;
    Plan plan{.shape = shape, .bucket = bucket(tokens), .algo = {}};
    const cublasOperation_t transpose = CUBLAS_OP_T;
    const size_t workspace = kGemmWorkspace;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    const bool ok =
        succeeded(lib.desc_create(&plan.desc, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
        succeeded(lib.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose, sizeof transpose)) &&
        succeeded(lib.layout_create(&plan.w, type, k, n, k)) &&
        succeeded(lib.layout_create(&plan.x, type, k, plan.bucket, k)) &&
        succeeded(lib.layout_create(&plan.out, out_type, n, plan.bucket, n)) &&
        succeeded(lib.preference_create(&preference)) &&
        succeeded(
            lib.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace)) &&
        succeeded(lib.heuristic(lib.lt, plan.desc, plan.w, plan.x, plan.out, plan.out, preference, 1, &result, &found));
    if (preference != nullptr) lib.preference_destroy(preference);
    if (!ok || found == 0) {
      return {StatusCode::kUnsupported,
              "cuBLASLt has no algorithm for a product of " + std::to_string(n) + " x " + std::to_string(k)};
    }
    plan.algo = result.algo;
    plan.is_new = std::none_of(plans_.begin(), plans_.end(), [&](const Plan& other) {
      return other.shape == shape && std::memcmp(&other.algo, &plan.algo, sizeof plan.algo) == 0;
    });
    plans_.push_back(plan);
  }
  return {};
}

cudaError_t GemmLt::run(const Gemm& g, cudaStream_t stream) {
  const Plan* plan = find(g.shape, g.tokens);
  CHECK_MSG(plan != nullptr, "a product that was not prepared");
  Library& lib = *library_;
  const uint64_t columns = static_cast<uint64_t>(g.tokens);
  lib.layout_set(plan->x, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
  lib.layout_set(plan->out, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns);
  lib.layout_set(plan->out, CUBLASLT_MATRIX_LAYOUT_LD, &g.out_stride, sizeof g.out_stride);
  const float beta = g.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status =
      lib.matmul(lib.lt, plan->desc, &g.alpha, g.w, plan->w, g.x, plan->x, &beta, g.out, plan->out, g.out, plan->out,
                 &plan->algo, workspace_, kGemmWorkspace, stream);
  return status == CUBLAS_STATUS_SUCCESS ? cudaSuccess : cudaErrorUnknown;
}

}  // namespace tailrace::cuda
