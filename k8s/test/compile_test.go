package test

import (
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/policy/mutating/patch"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/apiserver/pkg/cel/openapi/resolver"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"
)

// oldest is the version before the first one of which docs/kubernetes.md says that it takes
// the policies, 1.35 with a feature gate: an API server accepts no new expression that the
// version before it would not know.
var oldest = version.MajorMinor(1, 34)

// An API server accepts each expression when the policies are applied: it has the functions,
// and the types agree.
func TestExpressionsCompileInTheOldestVersion(t *testing.T) {
	options := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	withPatches := options
	withPatches.HasPatchTypes = true
	compiled := 0
	for _, file := range []string{"inject/mutating.yaml", "inject/validating.yaml"} {
		for _, object := range manifest(t, file) {
			compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(oldest))
			if err != nil {
				t.Fatal(err)
			}
			check := func(what string, expression cel.ExpressionAccessor, options cel.OptionalVariableDeclarations) {
				compiled++
				if err := compiler.CompileCELExpression(expression, options, environment.NewExpressions).Error; err != nil {
					t.Errorf("%s: %s: %v\n%s", file, what, err, expression.GetExpression())
				}
			}
			variables := func(all []admissionv1.Variable) {
				for _, v := range all {
					compiled++
					result := compiler.CompileAndStoreVariable(&mutating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.NewExpressions)
					if result.Error != nil {
						t.Errorf("%s: the variable %s: %v\n%s", file, v.Name, result.Error, v.Expression)
					}
				}
			}
			conditions := func(all []admissionv1.MatchCondition) {
				for i := range all {
					check("the condition "+all[i].Name, (*matchconditions.MatchCondition)(&all[i]), options)
				}
			}
			switch policy := object.(type) {
			case *admissionv1.MutatingAdmissionPolicy:
				conditions(policy.Spec.MatchConditions) // before the variables, which they cannot use
				variables(policy.Spec.Variables)
				for _, mutation := range policy.Spec.Mutations {
					check("the mutation", &patch.JSONPatchCondition{Expression: mutation.JSONPatch.Expression}, withPatches)
				}
			case *admissionv1.ValidatingAdmissionPolicy:
				conditions(policy.Spec.MatchConditions)
				variables(policy.Spec.Variables)
				for _, v := range policy.Spec.Validations {
					check("a validation", &validating.ValidationCondition{Expression: v.Expression}, options)
					if v.MessageExpression != "" {
						check("a message", &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression}, cel.OptionalVariableDeclarations{})
					}
				}
			}
		}
	}
	if compiled < 60 {
		t.Errorf("%d expressions: are the policies where this test looks?", compiled)
	}
}

// The validating policies, with the types of the real schema of pods: a member that pods do
// not have is a warning here, and would be an error in each request.
func TestExpressionsFitTheSchemaOfPods(t *testing.T) {
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("Pod"), meta.RESTScopeNamespace)
	checker := &validating.TypeChecker{
		SchemaResolver: &resolver.ClientDiscoveryResolver{Discovery: realSchemas{fake.NewClientset().Discovery()}},
		RestMapper:     mapper,
	}
	checked := 0
	for _, object := range manifest(t, "inject/validating.yaml") {
		policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy)
		if !ok {
			continue
		}
		checked++
		for _, warning := range checker.Check(policy) {
			t.Errorf("%s: %s: %s", policy.Name, warning.FieldRef, warning.Warning)
		}
		// It does look.
		wrong := policy.DeepCopy()
		wrong.Spec.Validations[0].Expression = `object.spec.container == "x"`
		if len(checker.Check(wrong)) == 0 {
			t.Errorf("%s: a member that pods do not have is no warning", policy.Name)
		}
	}
	if checked != 2 {
		t.Errorf("%d validating policies; want two", checked)
	}
}

// realSchemas publishes the schemas that an API server of these libraries' version does.
type realSchemas struct{ discovery.DiscoveryInterfaces }

func (realSchemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }
