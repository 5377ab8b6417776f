// Indices and tails that contexts' files of the corpus have.
#pragma once

namespace topkv::fuzz {

/// In context_archive's inputs the first byte is the number of one, or of queries behind the last:
/// new ones go to the end, and move queries.
inline constexpr const char* context_specs[] = {"codes:k=8,v=4",
                                                "mean",
                                                "ivf:size=8,share=2",
                                                "quest:page=8",
                                                "sparq:r=8,v=1",
                                                "lowrank:r=8",
                                                "h2o",
                                                "retroinfer:size=8,segment=1024,v=1",
                                                "pages:size=8",
                                                "squeezed:c=20,coarse=1,s=80",
                                                "tova",
                                                "none",
                                                "sample:rows=8,eps=10,delta=5",
                                                "hnsw:M=2,efc=8",
                                                "faiss:HNSW2;ef=8,efc=8",
                                                "faiss:IVF3,SQ8;nprobe=2",
                                                "faiss:IVF,PQ4x4;nprobe=1",
                                                "faiss:IVF2,Flat;nprobe=1",
                                                "faiss:SQfp16",
                                                "faiss:PQ2x4"};

}  // namespace topkv::fuzz
