// Command training-operator runs the controllers and webhooks of Kubeflow's training operator, on loopback alone.
//
// The operator's own command serves its webhooks on all addresses, and waits for certificates at a fixed place below
// /tmp, which all clusters and users of a machine would share.
package main

import (
	"flag"
	"os"

	kubeflow "github.com/kubeflow/training-operator/pkg/apis/kubeflow.org/v1"
	"github.com/kubeflow/training-operator/pkg/config"
	controllers "github.com/kubeflow/training-operator/pkg/controller.v1"
	"github.com/kubeflow/training-operator/pkg/controller.v1/common"
	"github.com/kubeflow/training-operator/pkg/webhooks"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
)

// MPIJob is left out, as the MPI operator has a newer one of the same name.
var kinds = []string{
	kubeflow.JAXJobKind, kubeflow.PaddleJobKind, kubeflow.PyTorchJobKind, kubeflow.TFJobKind, kubeflow.XGBoostJobKind,
}

func main() {
	var certificates, health string
	var port int
	flag.StringVar(&certificates, "cert-dir", "", "folder with tls.crt and tls.key of the webhooks")
	flag.StringVar(&health, "health-probe-bind-address", "0", "address of /healthz and /readyz")
	flag.IntVar(&port, "webhook-port", 9443, "port of the webhooks")
	flag.StringVar(&config.Config.PyTorchInitContainerTemplateFile, "pytorch-init-container-template-file", "",
		"template of the containers in which a worker waits for its master")
	flag.Parse()
	ctrl.SetLogger(zap.New())

	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeflow.AddToScheme(scheme))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: health,
		WebhookServer:          webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: port, CertDir: certificates}),
	})
	exitOn(err)
	for _, kind := range kinds {
		exitOn(controllers.SupportedSchemeReconciler[kind](manager, common.GenNonGangSchedulerSetupFunc(), 1))
		exitOn(webhooks.SupportedSchemeWebhook[kind](manager))
	}
	exitOn(manager.AddHealthzCheck("healthz", healthz.Ping))
	exitOn(manager.AddReadyzCheck("readyz", manager.GetWebhookServer().StartedChecker()))
	exitOn(manager.Start(ctrl.SetupSignalHandler()))
}

func exitOn(err error) {
	if err != nil {
		ctrl.Log.Error(err, "the training operator cannot go on")
		os.Exit(1)
	}
}
