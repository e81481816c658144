module sandbox/job-kinds

go 1.26.0

require (
	github.com/kubeflow/mpi-operator v0.8.2
	github.com/kubeflow/trainer/v2 v2.2.1
	github.com/project-codeflare/appwrapper v1.2.2
	github.com/ray-project/kuberay/ray-operator v1.6.2
)
