"""Kinds of kernels by names as torch's profiler gives them, on cards of several generations."""

import pytest

from lucid.apis.gpu_time import KernelTime
from lucid.apis.kernel_kinds import KINDS, by_kind, kind_of, short_name

SM90 = (
    'sm90_xmma_{}_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize128x128x64_warpgroupsize1x1x1_g1_execute_kernel__5x_cudnn'
)
COPIES = 'direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#12}'
LIST = 'at::native::(anonymous namespace)::TensorListMetadata<2>'
NAMES = {
    'convolution, matmul': [
        SM90.format('fprop_implicit_gemm'),
        SM90.format('dgrad_implicit_gemm_indexed'),
        'sm80_xmma_wgrad_implicit_gemm_indexed_bf16bf16_bf16f32_f32_nhwckrsc_nhwc_tilesize64x64x64_stage4_warpsize1x1x4'
        '_g1_tensor16x8x16_execute_kernel__5x_cudnn',
        'void cutlass__5x_cudnn::Kernel<cutlass_tensorop_bf16_s16816fprop_optimized_bf16_64x64_64x5_nhwc_align8>'
        '(cutlass_tensorop_bf16_s16816fprop_optimized_bf16_64x64_64x5_nhwc_align8::Params)',
        'void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x256_32x3_tn_align8>(Params)',
        'nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT',
        'void conv2d_c1_k1_nhwc_kernel_specialized<__half, __half, __half, float, float, 3, 1, 8, 3, true>(float)',
        'void at::native::(anonymous namespace)::conv_depthwise2d_forward_kernel<3, c10::BFloat16, int>(int)',
        'void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float>(int)',
        'void implicit_convolve_sgemm<float, float, 1024, 5, 5, 3, 3, 3, 1, false, false, true>(int)',
        '_5x_cudnn_ampere_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1',
        'void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16, float, __nv_bfloat16, true>(int)',
        'void gemv2T_kernel_val<int, int, float, float, float, float, 128, 16, 2, 2, false, false>(float)',
        'triton_tem_fused_mm_3',
    ],
    'BatchNorm': [
        'void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct, float const*)',
        'void cudnn::bn_fw_tr_1C11_singleread<float, 512, true, 1, 2, 0>(cudnnTensorStruct)',
        'void cudnn::bn_bw_1C11_kernel_new<__half, float, float2, 512, true, 1>(float, float, cudnnTensorStruct)',
        '_ZN5cudnn21bn_bw_1C11_kernel_new',
        'void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::InvStd, c10::BFloat16, float, '
        '4>(c10::BFloat16 const*, float*, float*, float volatile*, int*, int, int, float)',
        'void at::native::batch_norm_transform_input_channels_last_kernel<c10::BFloat16, float, float, 4>(int)',
        'void at::native::batch_norm_backward_reduce_channels_last_kernel<4, c10::BFloat16, float, float>(int)',
        'void at::native::batch_norm_backward_elemt_channels_last_kernel_impl<4, c10::BFloat16, float, float>(int)',
        'void at::native::unrolled_elementwise_kernel_for_multi_outputs<2, at::native::batch_norm_update_stats_and_'
        'invert(at::Tensor const&)::{lambda(float, float)#1}>(int)',
        'nhwc_batch_norm_fwd',
        '_bn_silu_forward',
    ],
    'element-wise': [
        'void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >'
        '(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)',
        'void at::native::vectorized_elementwise_kernel<8, at::native::(anonymous namespace)::silu_kernel(at::Tensor'
        'IteratorBase&)::{lambda()#1}, std::array<char*, 2ul> >(int)',
        'void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<'
        'float, float, float, at::native::binary_internal::MulFunctor<float> > > >(int)',
        'void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctorOnSelf_add<long>, std::array<char*, 2ul>, '
        '4, TrivialOffsetCalculator<1, unsigned int>, at::native::memory::LoadWithCast<1> >(int)',
        'triton_poi_fused__native_batch_norm_legit_functional_silu_7',
        'triton_poi_fused__to_copy_cat_12',
    ],
    'reduction': [
        'void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, '
        'float>, unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float>>)',
        'void (anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float, c10::BFloat16>(c10::BFloat16*, int)',
        'triton_red_fused_native_batch_norm_backward_threshold_backward_5',
        'triton_per_fused__to_copy_add_native_layer_norm_2',
    ],
    'copy, fill': [
        'Memcpy DtoD (Device -> Device)',
        'Memcpy HtoD (Pinned -> Device)',
        'Memset (Device)',
        f'void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::{COPIES}> >(int)',
        'void at::native::vectorized_elementwise_kernel<8, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase'
        '&)::{lambda(float)#1}, std::array<char*, 2ul> >(int)',
        'void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul>>()',
        'void at::native::(anonymous namespace)::CatArrayBatchedCopy_vectorized<at::native::(anonymous namespace)::'
        'OpaqueType<2u>, unsigned int, 4, 64, 64, 16, 8>(char*)',
        'void cudnn::engines_precompiled::nchwToNhwcKernel<__half, __half, float, false, true, '
        '(cudnnKernelDataType_t)0>(cudnn::engines_precompiled::nchw2nhwc_params_t<float>, __half const*, __half*)',
        'void cudnn::ops::nhwcToNchwKernel<float, float, float, true, false, (cudnnKernelDataType_t)0>(int)',
        'void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>(float, float const*)',
    ],
    'optimizer, foreach': [
        f'void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{LIST}, at::native::(anonymous namespace)::'
        'BinaryOpListAlphaFunctor<float, 2, 2, 0>, std::plus<float>, float>(int)',
        f'void at::native::(anonymous namespace)::multi_tensor_apply_kernel<{LIST}, at::native::Copy<float, float>>()',
        'void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::Fused'
        'OptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4>>(int)',
        'void at::native::lpnorm_cleanup<float, (at::native::NormType)1, float, float>(float const*, int)',
        'triton_for_fused_add_mul_0',
    ],
    'index, sort, scan': [
        'void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<at::native::index_put_kernel'
        '_impl<at::native::OpaqueType<4> > > >(long)',
        'void at::native::_scatter_gather_elementwise_kernel<256, 4, at::native::_cuda_scatter_gather_internal_kernel<'
        'false, at::native::OpaqueType<4>, long> >(int)',
        'void at::native::sbtopk::gatherTopK<float, unsigned int, 2, false>(at::cuda::detail::TensorInfo<float const>)',
        'void at::native::bitonicSortKVInPlace<2, -1, 16, 16, float, long, at::native::GTOp<float, true>, unsigned>()',
        'void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<int>(int)',
        'void at::native::tensor_kernel_scan_innermost_dim<float, std::plus<float> >(float*, float const*)',
    ],
    'other': [
        'void at::native::(anonymous namespace)::max_pool_forward_nhwc<c10::BFloat16, int>(c10::BFloat16 const*, int)',
        'void at::native::(anonymous namespace)::upsample_nearest2d_nhwc_out_frame<c10::BFloat16, &at::native::nearest_'
        'neighbor_compute_source_index>(c10::BFloat16 const*)',
        'my_kernel',
    ],
}


@pytest.mark.parametrize(('kind', 'name'), [(kind, name) for kind, names in NAMES.items() for name in names])
def test_a_kernel_is_of_the_kind_that_its_name_says(kind: str, name: str) -> None:
    assert kind_of(name) == kind


def test_there_are_names_of_every_kind() -> None:
    assert tuple(NAMES) == KINDS


def test_kernels_add_up_by_kind_the_longest_first() -> None:
    found = by_kind(
        [
            KernelTime('Memset (Device)', 1.0, 3.0),
            KernelTime('triton_poi_fused_silu_1', 2.0, 0.5),
            KernelTime('triton_poi_fused_silu_2', 4.0, 10.0),
            KernelTime('nvjet_tst_64x8', 1.0, 1.0),
            KernelTime('my_kernel', 0.0, 1.0),
        ]
    )
    assert [(each.kind, each.ms, each.num_launches, each.share) for each in found] == [
        ('element-wise', 6.0, 10.5, 0.75),
        ('copy, fill', 1.0, 3.0, 0.125),
        ('convolution, matmul', 1.0, 1.0, 0.125),
        ('other', 0.0, 1.0, 0.0),
    ]
    assert [kernel.name for kernel in found[0].kernels] == ['triton_poi_fused_silu_2', 'triton_poi_fused_silu_1']
    assert by_kind([]) == []


def test_a_short_name_keeps_what_tells_kernels_apart() -> None:
    name = 'void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::BFloat16> >'
    assert short_name(name) == 'vectorized_elementwise_kernel<4, CUDAFunctor_add<BFloat16> >'
    assert short_name('triton_poi_fused_add_1') == 'triton_poi_fused_add_1'
